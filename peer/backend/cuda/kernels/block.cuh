// Folds: many values into one, across the lanes of a warp, the threads of a block, or what threads hold of a
// line. Always the same tree. Each returns the result to every thread that took part.
#pragma once

#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/lines.h"
#include "peer/backend/cuda/kernels/math.cuh"

#if defined(__CUDACC__)
#define WEFT_UNROLL _Pragma("unroll")
#else
#define WEFT_UNROLL
#endif

namespace weft::peer::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ __forceinline__ bool is_nan(float x) { return x != x; }
__device__ __forceinline__ bool is_nan(double x) { return x != x; }
__device__ __forceinline__ bool is_nan(int32_t) { return false; }
__device__ __forceinline__ bool is_nan(int64_t) { return false; }

// Integers wrap.
__device__ __forceinline__ float added(float a, float b) { return a + b; }
__device__ __forceinline__ double added(double a, double b) { return a + b; }
__device__ __forceinline__ int32_t added(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
__device__ __forceinline__ int64_t added(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
__device__ __forceinline__ float multiplied(float a, float b) { return a * b; }
__device__ __forceinline__ int32_t multiplied(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
__device__ __forceinline__ int64_t multiplied(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
}

struct SumOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return added(a, b);
  }
};
struct ProductOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return multiplied(a, b);
  }
};
// A NaN wins.
struct MaxOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a > b || is_nan(a) ? a : b;
  }
};
// A NaN is passed over, for where it comes back by what is done with the result.
struct LargerOf {
  __device__ __forceinline__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct MinOf {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b || is_nan(a) ? a : b;
  }
};

// Over each `lanes` neighbours of the warp. REQUIRES: a power of two, at most 32; all lanes of the warp call.
template <typename T, typename Combine>
__device__ __forceinline__ T group_fold(T x, int32_t lanes, Combine combine) {
  for (int32_t step = lanes / 2; step > 0; step /= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
template <typename T, typename Combine>
__device__ __forceinline__ T warp_fold(T x, Combine combine) {
  return group_fold(x, 32, combine);
}

// Over the block. REQUIRES: whole warps; all threads call.
template <typename T, typename Combine>
__device__ __forceinline__ T block_fold(T x, T identity, Combine combine) {
  WEFT_SHARED(T, of_warp, 32);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  x = warp_fold(x, combine);
  if (lane == 0) of_warp[warp] = x;
  __syncthreads();
  x = identity;
  if (lane < blockDim.x / 32) x = of_warp[lane];
  __syncthreads();  // the next fold writes there
  return warp_fold(x, combine);
}
template <typename T>
__device__ __forceinline__ T block_sum(T x) {
  return block_fold(x, T{0}, SumOf());
}

// Over the threads of a block that are multiples of `width` apart. REQUIRES: kLineThreads threads, all call;
// width is a power of two.
template <typename T, typename Combine>
__device__ __forceinline__ T column_fold(T x, int32_t width, Combine combine) {
  WEFT_SHARED(T, tile, kLineThreads);
  if (width == kLineThreads) return x;
  const int32_t t = static_cast<int32_t>(threadIdx.x);
  tile[t] = x;
  __syncthreads();
  for (int32_t half = kLineThreads / 2; half >= width; half /= 2) {
    if (t < half) {
      const T mine = tile[t], other = tile[t + half];
      tile[t] = combine(mine, other);
    }
    __syncthreads();
  }
  x = tile[t % width];
  __syncthreads();  // the next fold writes there
  return x;
}

// What a thread does of Lines: elements first, first + lanes, ... of `count`, element k at base + k * inner.
struct Line {
  int64_t index;  // in [outer, pieces, inner]
  int64_t base, count;
  int32_t first;
  bool there;  // else beyond the last line, and count is 0
};

__device__ __forceinline__ Line line_of(const Lines& lines) {
  const int32_t t = static_cast<int32_t>(threadIdx.x), across = kLineThreads / lines.lanes;
  const bool side_by_side = lines.inner == 1;
  Line line;
  line.first = side_by_side ? t % lines.lanes : t / across;
  line.index = static_cast<int64_t>(blockIdx.x) * across + (side_by_side ? t / lines.lanes : t % across);
  line.there = line.index < lines.outer * lines.pieces * lines.inner;
  int64_t outer = line.index, column = 0, start = 0;
  if (!side_by_side) {
    column = outer % lines.inner;
    outer = outer / lines.inner;
  }
  if (lines.pieces > 1) {
    start = outer % lines.pieces * lines.piece;
    outer = outer / lines.pieces;
  }
  line.base = (outer * lines.size + start) * lines.inner + column;
  const int64_t left = lines.size - start;
  line.count = !line.there ? 0 : left < lines.piece ? left : lines.piece;
  return line;
}

// Over the threads of a line. REQUIRES: all threads of the block call.
template <typename T, typename Combine>
__device__ __forceinline__ T line_fold(const Lines& lines, T x, T identity, Combine combine) {
  if (lines.inner > 1) return column_fold(x, kLineThreads / lines.lanes, combine);
  if (lines.lanes > 32) return block_fold(x, identity, combine);
  return group_fold(x, lines.lanes, combine);
}
__device__ __forceinline__ float line_sum(const Lines& lines, float x) {
  return line_fold(lines, x, 0.0f, SumOf());
}

// Where lines are side by side and their lanes are known: a warp's or a block's.
template <int32_t kLanes, typename T, typename Combine>
__device__ __forceinline__ T lanes_fold(T x, T identity, Combine combine) {
  static_assert(kLanes == 32 || kLanes == kLineThreads);
  if constexpr (kLanes == 32) return warp_fold(x, combine);
  return block_fold(x, identity, combine);
}

// load(i) for i = begin, begin + step, ... below `end`, in four chains, so that loads are under way together.
template <typename T, typename Combine, typename Load>
__device__ __forceinline__ T thread_fold(int64_t begin, int64_t end, int64_t step, T identity,
                                         Combine combine, const Load& load) {
  T a = identity, b = identity, c = identity, d = identity;
  int64_t i = begin;
  for (; i + 3 * step < end; i += 4 * step) {
    const T xa = load(i), xb = load(i + step), xc = load(i + 2 * step), xd = load(i + 3 * step);
    a = combine(a, xa);
    b = combine(b, xb);
    c = combine(c, xc);
    d = combine(d, xd);
  }
  for (; i < end; i += step) a = combine(a, load(i));
  return combine(combine(a, b), combine(c, d));
}

// store(i, load(i)) for the same, four loads before their stores: a result may lie where an operand does, so
// that the compiler may not move one across the other.
template <typename Load, typename Store>
__device__ __forceinline__ void thread_map(int64_t begin, int64_t end, int64_t step, const Load& load,
                                           const Store& store) {
  int64_t i = begin;
  for (; i + 3 * step < end; i += 4 * step) {
    const auto a = load(i), b = load(i + step), c = load(i + 2 * step), d = load(i + 3 * step);
    store(i, a);
    store(i + step, b);
    store(i + 2 * step, c);
    store(i + 3 * step, d);
  }
  for (; i < end; i += step) store(i, load(i));
}

// load(k) for all elements of the line, over all its threads.
template <typename T, typename Combine, typename Load>
__device__ __forceinline__ T fold_elements(const Lines& lines, const Line& line, T identity, Combine combine,
                                           const Load& load) {
  return line_fold(lines, thread_fold<T>(line.first, line.count, lines.lanes, identity, combine, load),
                   identity, combine);
}

}  // namespace weft::peer::cuda
