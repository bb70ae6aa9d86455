#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/gather.h"
#include "peer/backend/cuda/kernels/moves.cuh"

namespace weft::peer::cuda {
namespace {

template <typename T>
__device__ __forceinline__ void gather(const Gather<T>& p) {
  T values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        const auto column = int64_t{take_remainder(i, p.inner)};
        const int64_t row = resolved(p.indices, int64_t{take_remainder(i, p.indices_count)}, p.size);
        values[k] = p.missing;
        if (row >= 0) values[k] = p.from[(int64_t{i} * p.size + row) * p.inner.divisor + column];
      },
      [&](int k, uint32_t i) { p.to[i] = values[k]; });
}

template <typename T>
__device__ __forceinline__ void gather_elements(const GatherElements<T>& p) {
  T values[kMovesEach] = {};
  move_each(
      p.count,
      [&](int k, uint32_t i) {
        const int64_t row = resolved(p.indices, int64_t{i}, p.size);
        values[k] = p.missing;
        if (row >= 0) values[k] = p.from[places_of(p.walk, i).from + row * p.step];
      },
      [&](int k, uint32_t i) { p.to[i] = values[k]; });
}

template <typename T>
__device__ __forceinline__ T reduced(Reduction, T, T update) {
  return update;
}
template <>
__device__ __forceinline__ float reduced<float>(Reduction reduction, float x, float update) {
  switch (reduction) {
    case Reduction::None:
      return update;
    case Reduction::Add:
      return x + update;
    case Reduction::Mul:
      return x * update;
    case Reduction::Min:
      return update < x || is_nan(update) ? update : x;
    case Reduction::Max:
      return update > x || is_nan(update) ? update : x;
  }
  return x;
}

template <typename T>
__device__ __forceinline__ void scatter_lines(const ScatterLines<T>& p) {
  const uint32_t line = blockIdx.x * kMoveThreads + threadIdx.x;
  if (line >= p.lines) return;
  const Places base = places_of(p.walk, line);
  // Four at a time: what they are and where they go is read together, the sums wait for one another.
  constexpr int kTogether = 4;
  for (int64_t begin = 0; begin < p.count; begin += kTogether) {
    int64_t rows[kTogether] = {};
    T updates[kTogether] = {};
    WEFT_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      rows[k] = -1;
      if (begin + k >= p.count) continue;
      const int64_t from = base.from + (begin + k) * p.step;
      rows[k] = resolved(p.indices, from, p.to_size);
      updates[k] = p.updates[from];
    }
    WEFT_UNROLL
    for (int k = 0; k < kTogether; ++k) {
      if (rows[k] < 0) continue;
      const int64_t to = base.to + rows[k] * p.to_step;
      p.to[to] = p.reduction == Reduction::None ? updates[k] : reduced<T>(p.reduction, p.to[to], updates[k]);
    }
  }
}

// The first update of an element does them all.
template <typename T>
__device__ __forceinline__ void scatter_ordered(const ScatterOrdered<T>& p) {
  const int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  if (i >= p.keys.count) return;
  const uint32_t to = p.keys[i];
  if (int64_t{to} >= p.to.count) return;  // nowhere
  if (p.reduction == Reduction::None) {
    const bool is_last = i + 1 == p.keys.count || p.keys[i + 1] != to;
    if (is_last) p.to[to] = p.updates[p.entries[i]];
    return;
  }
  if (i > 0 && p.keys[i - 1] == to) return;
  T value = p.to[to];
  for (int64_t k = i; k < p.keys.count && p.keys[k] == to; ++k)
    value = reduced<T>(p.reduction, value, p.updates[p.entries[k]]);
  p.to[to] = value;
}

}  // namespace

__global__ void __launch_bounds__(kMoveThreads) row_keys(RowKeys p) {
  const int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  if (i >= p.keys.count) return;
  const int64_t row = resolved(p.indices, i, p.size);
  p.keys[i] = static_cast<uint32_t>(row < 0 ? p.size : row);
}
WEFT_KERNEL_ENTRY(row_keys, RowKeys)

__global__ void __launch_bounds__(kMoveThreads) element_keys(ElementKeys p) {
  const int64_t i = int64_t{blockIdx.x} * kMoveThreads + threadIdx.x;
  if (i >= p.keys.count) return;
  const int64_t row = resolved(p.indices, i, p.size);
  const int64_t place = places_of(p.walk, static_cast<uint32_t>(i)).from + row * p.step;
  p.keys[i] = row < 0 ? p.nowhere : static_cast<uint32_t>(place);
}
WEFT_KERNEL_ENTRY(element_keys, ElementKeys)

#define WEFT_GATHER(T, name)                                                                \
  __global__ void __launch_bounds__(kMoveThreads) gather_##name(Gather<T> p) { gather(p); } \
  WEFT_KERNEL_ENTRY(gather_##name, Gather<T>)
WEFT_GATHER(uint8_t, 1)
WEFT_GATHER(uint16_t, 2)
WEFT_GATHER(uint32_t, 4)
WEFT_GATHER(uint64_t, 8)
WEFT_GATHER(Unit16, 16)

#define WEFT_GATHER_ELEMENTS(T, name)                                                           \
  __global__ void __launch_bounds__(kMoveThreads) gather_elements_##name(GatherElements<T> p) { \
    gather_elements(p);                                                                         \
  }                                                                                             \
  WEFT_KERNEL_ENTRY(gather_elements_##name, GatherElements<T>)
WEFT_GATHER_ELEMENTS(uint8_t, 1)
WEFT_GATHER_ELEMENTS(uint16_t, 2)
WEFT_GATHER_ELEMENTS(uint32_t, 4)
WEFT_GATHER_ELEMENTS(uint64_t, 8)

#define WEFT_SCATTER(T, name)                                                                   \
  __global__ void __launch_bounds__(kMoveThreads) scatter_lines_##name(ScatterLines<T> p) {     \
    scatter_lines(p);                                                                           \
  }                                                                                             \
  WEFT_KERNEL_ENTRY(scatter_lines_##name, ScatterLines<T>)                                      \
  __global__ void __launch_bounds__(kMoveThreads) scatter_ordered_##name(ScatterOrdered<T> p) { \
    scatter_ordered(p);                                                                         \
  }                                                                                             \
  WEFT_KERNEL_ENTRY(scatter_ordered_##name, ScatterOrdered<T>)
WEFT_SCATTER(uint8_t, 1)
WEFT_SCATTER(uint16_t, 2)
WEFT_SCATTER(uint32_t, 4)
WEFT_SCATTER(uint64_t, 8)
WEFT_SCATTER(float, f32)

}  // namespace weft::peer::cuda
