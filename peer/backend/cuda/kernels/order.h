// Scattering without atomics: entries are ordered by the place that they go to, stably, and each place then
// adds its list, so that every sum has one order. Radix sort of 8 bits a pass: three launches each.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"

namespace weft::peer::cuda {

inline constexpr int32_t kDigits = 256;
inline constexpr uint32_t kOrderThreads = 256;
inline constexpr uint32_t kScanThreads = 1024;

// A block's entries: 256 in each of `rounds`. A warp's lie together.
struct OrderPass {
  Array<const uint32_t> keys;
  Array<uint32_t> counts;  // [digits, blocks]
  uint32_t rounds, shift;
};
extern const EntryOf<OrderPass> k_count_digits;

// Each becomes the sum of those before it. One block.
struct ScanCounts {
  Array<uint32_t> counts;
};
extern const EntryOf<ScanCounts> k_scan_counts;

struct MoveByDigit {
  OrderPass pass;
  Array<const uint32_t> entries;  // absent: they are in order
  Array<uint32_t> keys_to, entries_to;
};
extern const EntryOf<MoveByDigit> k_move_by_digit;

// starts[r]: how many of the ordered keys are below r.
struct FindStarts {
  Array<const uint32_t> keys;
  Array<uint32_t> starts;
};
extern const EntryOf<FindStarts> k_find_starts;

// to[batch, outer, rows, inner]: each the sum over its row's list of weight * from[batch, outer, sources,
// inner]. Every batch has its own lists, rows of them; entry e comes of source e / per_source, counted over
// all batches. A block has `columns` threads side by side, a power of two, and as many rows as fit; a long
// list is shared by the whole block.
inline constexpr uint32_t kListThreads = 256;
struct SumLists {
  Array<const uint32_t> starts, entries;
  Array<const float> weights;  // of entries; absent: one
  Array<const float> from;
  Array<float> to;
  uint32_t count;  // of rows, over outer and batch
  uint32_t columns;
  Divider rows, outer, per_source;
  int64_t sources, inner;
};
extern const EntryOf<SumLists> k_sum_lists_1;
// Four columns a thread; inner is a multiple of four.
extern const EntryOf<SumLists> k_sum_lists_4;

}  // namespace weft::peer::cuda
