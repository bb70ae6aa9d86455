// Kernels that read or write where integers of the data say. No index, whatever it says, leaves its tensor.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"
#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {

// to[outer, indices, inner] = from[outer, the index, inner], `missing` where the index is out of range.
template <typename T>
struct Gather {
  Indices indices;
  Array<const T> from;
  Array<T> to;
  T missing;
  uint32_t count;  // of `to`
  Divider inner, indices_count;
  int64_t size;  // of the axis
};

// to[i] = from[its place, with the index in the place of one coordinate]. The walk is over `to` (and
// indices); its `from` leaves that coordinate out.
template <typename T>
struct GatherElements {
  Indices indices;
  Array<const T> from;
  Array<T> to;
  T missing;
  uint32_t count;
  int64_t size, step;  // of the axis in `from`
  Walk walk;
};

// Updates go to elements of `to` one after the other along the axis: a thread has a line of them. The walk is
// over lines: `from` in updates (and indices), `to` in `to`.
enum class Reduction : int32_t { None, Add, Mul, Min, Max };
template <typename T>
struct ScatterLines {
  Indices indices;
  Array<const T> updates;
  Array<T> to;
  Reduction reduction;  // None, but for floats
  uint32_t lines;
  int64_t count, step;       // of updates along the line
  int64_t to_size, to_step;  // of the axis in `to`
  Walk walk;
};

// The same where lines are few and long: updates ordered by where they go, nowhere last.
template <typename T>
struct ScatterOrdered {
  Array<const uint32_t> keys, entries;
  Array<const T> updates;
  Array<T> to;
  Reduction reduction;
};

// The row that each index means; `size` for none.
struct RowKeys {
  Indices indices;
  int64_t size;
  Array<uint32_t> keys;
};
extern const EntryOf<RowKeys> k_row_keys;

// The element that each index means, as GatherElements reads them; `nowhere` for none.
struct ElementKeys {
  Indices indices;
  int64_t size, step;
  uint32_t nowhere;
  Walk walk;
  Array<uint32_t> keys;
};
extern const EntryOf<ElementKeys> k_element_keys;

#define WEFT_DECLARE_GATHERS(T, bytes)                               \
  extern const EntryOf<GatherElements<T>> k_gather_elements_##bytes; \
  extern const EntryOf<ScatterLines<T>> k_scatter_lines_##bytes;     \
  extern const EntryOf<ScatterOrdered<T>> k_scatter_ordered_##bytes; \
  extern const EntryOf<Gather<T>> k_gather_##bytes;
WEFT_DECLARE_GATHERS(uint8_t, 1)
WEFT_DECLARE_GATHERS(uint16_t, 2)
WEFT_DECLARE_GATHERS(uint32_t, 4)
WEFT_DECLARE_GATHERS(uint64_t, 8)
#undef WEFT_DECLARE_GATHERS
extern const EntryOf<Gather<Unit16>> k_gather_16;
extern const EntryOf<ScatterLines<float>> k_scatter_lines_f32;
extern const EntryOf<ScatterOrdered<float>> k_scatter_ordered_f32;

}  // namespace weft::peer::cuda
