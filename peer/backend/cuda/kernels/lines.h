// A tensor as lines along one of its axes, and how many threads work on a line: what reductions, softmax and
// layer normalisation have in common. The choices are made of shapes alone, so that bits are.
#pragma once

#include <algorithm>

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

inline constexpr int32_t kLineThreads = 256;  // a block

// x[outer, size, inner] as lines along the middle, each in `pieces` of `piece` elements (the last one may be
// shorter). `lanes` threads share a piece, a power of two: neighbours in a block where inner is 1 (then at
// most 32 or the whole block), else a block's width apart, so that neighbours are on neighbouring lines.
struct Lines {
  int64_t outer = 1, size = 1, inner = 1;
  int64_t piece = 1, pieces = 1;
  int32_t lanes = 1;
};

constexpr int64_t lines_count(const Lines& lines) { return lines.outer * lines.pieces * lines.inner; }

// The next power of two.
constexpr int64_t round_up_to_power(int64_t x) {
  int64_t power = 1;
  while (power < x) power *= 2;
  return power;
}

// Side by side, a line has a warp or part of one; the whole block, where it is long or where lines are few.
// Across, neighbouring lines are read together: 32 of them, or at least 8 where there are no more, or too few
// to keep a GPU busy.
constexpr int32_t lanes_for(int64_t piece, int64_t inner, int64_t count) {
  if (inner == 1) {
    if (piece > 1024 || (piece > 256 && count < 2048)) return kLineThreads;
    return static_cast<int32_t>(std::min<int64_t>(32, round_up_to_power(piece)));
  }
  const int64_t together = kLineThreads / std::clamp<int64_t>(round_up_to_power(inner), 8, 32);
  int64_t lanes = 1;
  while (lanes < 32 && 4 * lanes <= piece && count * lanes < (lanes < together ? 1 << 17 : 1 << 14))
    lanes *= 2;
  return static_cast<int32_t>(lanes);
}

// One kernel in several forms: any lines, or lines side by side in the registers of a warp or a block, so
// many elements a lane.
template <typename Parameters>
struct LineForms {
  const EntryOf<Parameters>&any, &warp_8, &warp_32, &block_8, &block_16;
};
template <typename Parameters>
const EntryOf<Parameters>& form_for(const LineForms<Parameters>& forms, const Lines& lines) {
  if (lines.inner == 1 && lines.lanes == 32) {
    if (lines.size <= int64_t{8} * 32) return forms.warp_8;
    if (lines.size <= int64_t{32} * 32) return forms.warp_32;
  }
  if (lines.inner == 1 && lines.lanes == kLineThreads) {
    if (lines.size <= int64_t{8} * kLineThreads) return forms.block_8;
    if (lines.size <= int64_t{16} * kLineThreads) return forms.block_16;
  }
  return forms.any;
}

// In one piece each.
constexpr Lines whole_lines(int64_t outer, int64_t size, int64_t inner) {
  return {outer, size, inner, size, 1, lanes_for(size, inner, outer * inner)};
}

inline Grid grid_of(const Lines& lines) {
  const int64_t across = kLineThreads / lines.lanes;
  return {static_cast<uint32_t>((lines_count(lines) + across - 1) / across), kLineThreads, 1};
}

}  // namespace weft::peer::cuda
