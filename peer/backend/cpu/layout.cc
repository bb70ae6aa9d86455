#include "peer/backend/cpu/layout.h"

#include <cstring>

#include "peer/backend/cpu/strided.h"

namespace weft::peer::cpu {
namespace {

// Plain to blocked and back is a transposition of each block of channels.
void transpose_blocks(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, int64_t lanes,
                      bool blocking, const float* source, float* target) {
  const int64_t positions = product(spec.shape, 2, spec.shape.size());
  const int64_t blocks = spec.shape[0] * spec.shape[1] / lanes;
  team.ranges(blocks, rows_grain(positions * lanes), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const float* block = source + i * positions * lanes;
      float* result = target + i * positions * lanes;
      if (blocking) {
        loops.transpose(block, positions, result, lanes, lanes, positions);
      } else {
        loops.transpose(block, lanes, result, positions, positions, lanes);
      }
    }
  });
}

// Both layouts as walks over [N * C / wide, wide / narrow, S, narrow], where wide and narrow are the blocks
// that there are: equal ones beside Plain.
void copy_steps(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, dag::Layout from,
                const void* source, dag::Layout to, void* target) {
  const int64_t positions = product(spec.shape, 2, spec.shape.size());
  const int64_t wide = std::max(lanes_of(from), lanes_of(to));
  const int64_t least = std::min(lanes_of(from), lanes_of(to)), narrow = least == 1 ? wide : least;
  const auto steps = [&](dag::Layout layout) -> Strides {
    const int64_t lanes = lanes_of(layout), outer = wide * positions;
    if (lanes == 1) return {outer, narrow * positions, 1, positions};
    if (lanes == wide) return {outer, narrow, wide, 1};
    return {outer, narrow * positions, narrow, 1};
  };
  const dag::Shape walk{spec.shape[0] * spec.shape[1] / wide, wide / narrow, positions, narrow};
  StridedCopy(walk, steps(from), steps(to), dag::element_size(spec.dtype)).run(team, loops, source, target);
}

}  // namespace

Status need_layout(const dag::TensorSpec& spec, dag::Layout layout) {
  if (layout == dag::Layout::Plain) return {};
  if (spec.rank() >= 3 && spec.shape[1] % lanes_of(layout) == 0) return {};
  return fail(ErrorCode::Unsupported, "cpu backend: " + dag::to_string(spec) + " cannot lie in layout " +
                                          std::string(to_string(layout)));
}

void convert_layout(const Team& team, const LoopTable& loops, const dag::TensorSpec& spec, dag::Layout from,
                    const void* source, dag::Layout to, void* target) {
  if (spec.element_count() == 0) return;
  if (from == to) {
    const auto* s = static_cast<const std::byte*>(source);
    auto* t = static_cast<std::byte*>(target);
    team.ranges(spec.bytes().value, kGrain * 4, [&](int64_t begin, int64_t end) {
      std::memcpy(t + begin, s + begin, static_cast<size_t>(end - begin));
    });
    return;
  }
  const bool plain = from == dag::Layout::Plain || to == dag::Layout::Plain;
  if (plain && dag::element_size(spec.dtype) == 4) {
    const bool blocking = from == dag::Layout::Plain;
    transpose_blocks(team, loops, spec, lanes_of(blocking ? to : from), blocking,
                     static_cast<const float*>(source), static_cast<float*>(target));
    return;
  }
  copy_steps(team, loops, spec, from, source, to, target);
}

}  // namespace weft::peer::cpu
