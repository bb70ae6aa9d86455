#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/reduction.h"

namespace weft::peer::cuda {
namespace {

// What stands behind every number, or before: the identity of MinOf, of MaxOf.
template <typename T>
struct Ends;
template <>
struct Ends<float> {
  static __device__ __forceinline__ float high() { return math::infinity(); }
  static __device__ __forceinline__ float low() { return -math::infinity(); }
};
template <>
struct Ends<int32_t> {
  static __device__ __forceinline__ int32_t high() { return 0x7fffffff; }
  static __device__ __forceinline__ int32_t low() { return -0x7fffffff - 1; }
};
template <>
struct Ends<int64_t> {
  static __device__ __forceinline__ int64_t high() { return 0x7fffffffffffffff; }
  static __device__ __forceinline__ int64_t low() { return -0x7fffffffffffffff - 1; }
};

__device__ __forceinline__ float scaled(float x, float factor) { return x * factor; }
__device__ __forceinline__ int32_t scaled(int32_t x, float) { return x; }
__device__ __forceinline__ int64_t scaled(int64_t x, float) { return x; }

// ---- reductions ----

template <typename T, typename Combine>
__device__ __forceinline__ void reduce_by(const Reduce<T>& p, T identity, Combine combine) {
  const Line line = line_of(p.lines);
  const T result = fold_elements<T>(p.lines, line, identity, combine,
                                    [&](int64_t k) { return p.x[line.base + k * p.lines.inner]; });
  if (line.there && line.first == 0) p.y[line.index] = scaled(result, p.factor);
}

template <typename T>
__device__ __forceinline__ void reduce(const Reduce<T>& p) {
  switch (p.code) {
    case ReduceCode::Sum:
      return reduce_by(p, T{0}, SumOf());
    case ReduceCode::Product:
      return reduce_by(p, T{1}, ProductOf());
    case ReduceCode::Max:
      return reduce_by(p, Ends<T>::low(), MaxOf());
    case ReduceCode::Min:
      return reduce_by(p, Ends<T>::high(), MinOf());
  }
}

// ---- places of extremes ----

constexpr int64_t kNowhere = 0x7fffffffffffffff;

// Whether b takes the place of a, which stands before it.
template <typename T>
__device__ __forceinline__ bool beats(bool largest, T b, T a) {
  return !is_nan(a) && (is_nan(b) || (largest ? b > a : b < a));
}
template <typename T>
__device__ __forceinline__ bool same(T a, T b) {
  return a == b || (is_nan(a) && is_nan(b));
}

template <typename T>
struct Extreme {
  bool largest;
  __device__ __forceinline__ T operator()(T a, T b) const { return beats(largest, b, a) ? b : a; }
};

template <typename T>
__device__ __forceinline__ void arg_extreme(const ArgExtreme<T>& p) {
  const Line line = line_of(p.lines);
  const bool largest = p.largest != 0;
  const T last = largest ? Ends<T>::low() : Ends<T>::high();
  T best = last;
  int64_t place = kNowhere;
  for (int64_t k = line.first; k < line.count; k += p.lines.lanes) {
    const T x = p.x[line.base + k * p.lines.inner];
    if (place == kNowhere || beats(largest, x, best)) {
      best = x;
      place = k;
    }
  }
  // A lane without elements takes part with `last`, which no element is behind, and with no place.
  const T winner = line_fold(p.lines, best, last, Extreme<T>{largest});
  const int64_t claim = same(best, winner) ? place : kNowhere;
  const int64_t first = line_fold(p.lines, claim, kNowhere, MinOf());
  if (line.there && line.first == 0) p.y[line.index] = first;
}

// ---- running sums ----

template <typename T>
struct WideOf {
  using Type = T;
};
template <>
struct WideOf<float> {
  using Type = double;
};

template <typename T>
__device__ __forceinline__ void running_sum(const RunningSum<T>& p) {
  using Wide = typename WideOf<T>::Type;
  const int64_t line = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (line >= p.outer * p.inner) return;
  const int64_t base = line / p.inner * p.size * p.inner + line % p.inner;
  Wide sum = 0;
  for (int64_t step = 0; step < p.size; ++step) {
    const int64_t at = base + (p.reverse != 0 ? p.size - 1 - step : step) * p.inner;
    const Wide with = added(sum, static_cast<Wide>(p.x[at]));
    p.y[at] = static_cast<T>(p.exclusive != 0 ? sum : with);
    sum = with;
  }
}

// A block's width of elements at a time: sums of warps, then all warps before one's own.
template <typename T>
__device__ __forceinline__ void running_sum_long(const RunningSum<T>& p) {
  using Wide = typename WideOf<T>::Type;
  WEFT_SHARED(Wide, of_warp, 32);
  const int64_t line = blockIdx.x;
  const int64_t base = line / p.inner * p.size * p.inner + line % p.inner;
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  Wide carried = 0;
  for (int64_t start = 0; start < p.size; start += blockDim.x) {
    const int64_t step = start + threadIdx.x;
    const bool there = step < p.size;
    const int64_t at = base + (p.reverse != 0 ? p.size - 1 - step : step) * p.inner;
    Wide sum = 0;
    if (there) sum = static_cast<Wide>(p.x[at]);
    for (uint32_t distance = 1; distance < 32; distance *= 2) {
      const Wide before = __shfl_up_sync(kAllLanes, sum, distance);
      if (lane >= distance) sum = added(before, sum);
    }
    // Without one's own element; not by subtraction, which would make NaN of infinities.
    Wide own = sum;
    if (p.exclusive != 0) {
      own = __shfl_up_sync(kAllLanes, sum, 1);
      if (lane == 0) own = 0;
    }
    if (lane == 31) of_warp[warp] = sum;
    __syncthreads();
    Wide before = carried;
    for (uint32_t w = 0; w < warps; ++w) {
      if (w == warp) before = carried;
      carried = added(carried, static_cast<Wide>(of_warp[w]));
    }
    __syncthreads();
    if (there) p.y[at] = static_cast<T>(added(before, own));
  }
}

// ---- the first of a line ----

template <typename T>
__device__ __forceinline__ bool stands_before(bool largest, T a, T b) {
  if (is_nan(a) || is_nan(b)) return largest ? is_nan(a) && !is_nan(b) : !is_nan(a) && is_nan(b);
  return largest ? a > b : a < b;
}
template <typename T>
struct Earlier {
  bool largest;
  __device__ __forceinline__ T operator()(T a, T b) const { return stands_before(largest, b, a) ? b : a; }
};
template <typename T>
__device__ __forceinline__ bool stands_before(bool largest, T a, int64_t at, T b, int64_t bt) {
  return stands_before(largest, a, b) || (!stands_before(largest, b, a) && at < bt);
}

// What no element stands behind.
__device__ __forceinline__ float hindmost(bool largest, float) {
  return largest ? -math::infinity() : math::not_a_number();
}
template <typename T>
__device__ __forceinline__ T hindmost(bool largest, T) {
  return largest ? Ends<T>::low() : Ends<T>::high();
}

template <typename T>
__device__ __forceinline__ void rank(const FirstOfLine<T>& p) {
  WEFT_SHARED(T, line, kRankedMax);
  const int64_t outer = blockIdx.x / p.inner, column = blockIdx.x % p.inner;
  const int64_t base = outer * p.size * p.inner + column;
  const bool largest = p.largest != 0;
  for (int64_t k = threadIdx.x; k < p.size; k += blockDim.x) line[k] = p.x[base + k * p.inner];
  __syncthreads();
  for (int64_t k = threadIdx.x; k < p.size; k += blockDim.x) {
    const T own = line[k];
    int64_t before = 0;
    for (int64_t other = 0; other < p.size; ++other) {
      const T x = line[other];
      before += stands_before(largest, x, other, own, k) ? 1 : 0;
    }
    if (before < p.count) {
      const int64_t to = (outer * p.count + before) * p.inner + column;
      p.y[to] = own;
      p.places[to] = k;
    }
  }
}

template <typename T>
__device__ __forceinline__ void select(const FirstOfLine<T>& p) {
  const int64_t outer = blockIdx.x / p.inner, column = blockIdx.x % p.inner;
  const int64_t base = outer * p.size * p.inner + column;
  const bool largest = p.largest != 0;
  const T last = hindmost(largest, T{});
  T taken = last, best = last;
  int64_t taken_place = -1, place = kNowhere;
  for (int64_t round = 0; round < p.count; ++round) {
    // Whoever gave the last one looks for the next of those that it holds; all do at the start.
    if (round == 0 || place == taken_place) {
      best = last;
      place = kNowhere;
      for (int64_t k = threadIdx.x; k < p.size; k += kLineThreads) {
        const T x = p.x[base + k * p.inner];
        const bool is_left = round == 0 || stands_before(largest, taken, taken_place, x, k);
        if (is_left && (place == kNowhere || stands_before(largest, x, best))) {
          best = x;
          place = k;
        }
      }
    }
    taken = block_fold(best, last, Earlier<T>{largest});
    const int64_t claim = same(best, taken) ? place : kNowhere;
    taken_place = block_fold(claim, kNowhere, MinOf());
    if (threadIdx.x == 0) {
      const int64_t to = (outer * p.count + round) * p.inner + column;
      p.y[to] = taken;
      p.places[to] = taken_place;
    }
  }
}

}  // namespace

#define WEFT_REDUCTION_KERNELS(T, name)                                                                   \
  __global__ void __launch_bounds__(kLineThreads) reduce_##name(Reduce<T> p) { reduce(p); }               \
  WEFT_KERNEL_ENTRY(reduce_##name, Reduce<T>)                                                             \
  __global__ void __launch_bounds__(kLineThreads) arg_extreme_##name(ArgExtreme<T> p) { arg_extreme(p); } \
  WEFT_KERNEL_ENTRY(arg_extreme_##name, ArgExtreme<T>)                                                    \
  __global__ void __launch_bounds__(kLineThreads) running_sum_##name(RunningSum<T> p) { running_sum(p); } \
  WEFT_KERNEL_ENTRY(running_sum_##name, RunningSum<T>)                                                    \
  __global__ void __launch_bounds__(kLineThreads) running_sum_long_##name(RunningSum<T> p) {              \
    running_sum_long(p);                                                                                  \
  }                                                                                                       \
  WEFT_KERNEL_ENTRY(running_sum_long_##name, RunningSum<T>)                                               \
  __global__ void __launch_bounds__(kLineThreads) rank_##name(FirstOfLine<T> p) { rank(p); }              \
  WEFT_KERNEL_ENTRY(rank_##name, FirstOfLine<T>)                                                          \
  __global__ void __launch_bounds__(kLineThreads) select_##name(FirstOfLine<T> p) { select(p); }          \
  WEFT_KERNEL_ENTRY(select_##name, FirstOfLine<T>)

WEFT_REDUCTION_KERNELS(float, f32)
WEFT_REDUCTION_KERNELS(int32_t, i32)
WEFT_REDUCTION_KERNELS(int64_t, i64)
#undef WEFT_REDUCTION_KERNELS

}  // namespace weft::peer::cuda
