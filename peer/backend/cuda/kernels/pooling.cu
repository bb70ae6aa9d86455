#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/pooling.h"

namespace weft::peer::cuda {
namespace {

// A window of the result: its plane, and where its first tap lies in x, before or inside it.
struct Spot {
  int64_t plane;
  int32_t at[3];
};
__device__ __forceinline__ Spot spot_of(const Window& window, uint32_t i) {
  Spot spot{0, {0, 0, 0}};
  WEFT_UNROLL
  for (int d = 2; d >= 0; --d) {
    const WindowDim& dim = window.dims[d];
    spot.at[d] = static_cast<int32_t>(take_remainder(i, dim.by_out)) * dim.stride - dim.pad_begin;
  }
  spot.plane = int64_t{i};
  return spot;
}

// The element of x's plane under the tap; false: it is padding.
__device__ __forceinline__ bool place_of(const Window& window, const Spot& spot, const int32_t (&tap)[3],
                                         int32_t& place) {
  place = 0;
  bool inside = true;
  WEFT_UNROLL
  for (int d = 0; d < 3; ++d) {
    const WindowDim& dim = window.dims[d];
    const int32_t at = spot.at[d] + tap[d] * dim.dilation;
    inside = inside && at >= 0 && at < dim.in;
    place = place * dim.in + at;
  }
  return inside;
}

template <typename Visit>
__device__ __forceinline__ void for_each_tap(const Window& window, const Spot& spot, const Visit& visit) {
  for (int32_t a = 0; a < window.dims[0].kernel; ++a)
    for (int32_t b = 0; b < window.dims[1].kernel; ++b)
      for (int32_t c = 0; c < window.dims[2].kernel; ++c)
        if (int32_t place = 0; place_of(window, spot, {a, b, c}, place)) visit(place);
}
// The warp shares them out.
template <typename Visit>
__device__ __forceinline__ void for_each_tap_of_lane(const Window& window, const Spot& spot,
                                                     const Visit& visit) {
  for (int32_t t = static_cast<int32_t>(threadIdx.x % 32); t < window.taps; t += 32) {
    auto rest = static_cast<uint32_t>(t);
    const auto c = static_cast<int32_t>(take_remainder(rest, window.dims[2].by_kernel));
    const auto b = static_cast<int32_t>(take_remainder(rest, window.dims[1].by_kernel));
    if (int32_t place = 0; place_of(window, spot, {static_cast<int32_t>(rest), b, c}, place)) visit(place);
  }
}

// The first of the largest; NaN wins. -1: nothing yet.
struct Largest {
  float value;
  int32_t place;
};
__device__ __forceinline__ void take(Largest& most, float x, int32_t place) {
  if (most.place >= 0 && (is_nan(most.value) || !(x > most.value || is_nan(x)))) return;
  most = {x, place};
}
// Of the two, whose places differ.
__device__ __forceinline__ Largest larger(Largest a, Largest b) {
  if (b.place >= 0 && (a.place < 0 || b.place < a.place)) {
    const Largest later = a;
    a = b;
    b = later;
  }
  if (b.place >= 0) take(a, b.value, b.place);
  return a;
}

// How many elements the window is divided by along one dim: those inside x, or inside x with its padding.
__device__ __forceinline__ int32_t counted(const WindowDim& dim, int32_t at, bool padding_counts) {
  const int32_t first = padding_counts ? -dim.pad_begin : 0;
  const int32_t end = padding_counts ? dim.in + dim.pad_end : dim.in;
  const auto steps_to = [&](int32_t place) {  // taps before it
    if (place <= at) return 0;
    const auto steps =
        static_cast<int32_t>(divided(static_cast<uint32_t>(place - at - 1), dim.by_dilation)) + 1;
    return steps < dim.kernel ? steps : dim.kernel;
  };
  const int32_t count = steps_to(end) - steps_to(first);
  return count > 0 ? count : 0;
}
__device__ __forceinline__ float divisor_of(const Window& window, const Spot& spot, bool padding_counts) {
  int64_t count = 1;
  WEFT_UNROLL
  for (int d = 0; d < 3; ++d) count *= counted(window.dims[d], spot.at[d], padding_counts);
  return count > 0 ? static_cast<float>(count) : 1.0f;
}

// ---- backward: the windows that an element lies in ----

struct Range {
  int32_t begin, end;
};
__device__ __forceinline__ Range windows_over(const WindowDim& dim, int32_t at) {
  const int32_t last = at + dim.pad_begin, first = last - (dim.kernel - 1) * dim.dilation;
  Range range{0, static_cast<int32_t>(divided(static_cast<uint32_t>(last), dim.by_stride)) + 1};
  if (first > 0)
    range.begin = static_cast<int32_t>(divided(static_cast<uint32_t>(first - 1), dim.by_stride)) + 1;
  if (range.end > dim.out) range.end = dim.out;
  return range;
}
// Whether a tap of window o lies on the element, which the window's reach holds.
__device__ __forceinline__ bool has_tap_on(const WindowDim& dim, int32_t o, int32_t at) {
  if (dim.dilation == 1) return true;
  const auto distance = static_cast<uint32_t>(at + dim.pad_begin - o * dim.stride);
  return divided(distance, dim.by_dilation) * dim.by_dilation.divisor == distance;
}

// An element of dx: its plane, and where it lies there.
struct Element {
  int64_t plane;
  int32_t at[3], place;
};
__device__ __forceinline__ Element element_of(const Window& window, uint32_t i) {
  Element element{0, {0, 0, 0}, 0};
  uint32_t rest = i;
  WEFT_UNROLL
  for (int d = 2; d >= 0; --d)
    element.at[d] = static_cast<int32_t>(take_remainder(rest, window.dims[d].by_in));
  element.plane = int64_t{rest};
  element.place = (element.at[0] * window.dims[1].in + element.at[1]) * window.dims[2].in + element.at[2];
  return element;
}

// Calls visit(window of the plane, its coordinates).
template <typename Visit>
__device__ __forceinline__ void for_each_window(const Window& window, const Element& element,
                                                const Visit& visit) {
  const auto& [da, db, dc] = window.dims;
  const Range ra = windows_over(da, element.at[0]), rb = windows_over(db, element.at[1]),
              rc = windows_over(dc, element.at[2]);
  for (int32_t a = ra.begin; a < ra.end; ++a) {
    if (!has_tap_on(da, a, element.at[0])) continue;
    for (int32_t b = rb.begin; b < rb.end; ++b) {
      if (!has_tap_on(db, b, element.at[1])) continue;
      for (int32_t c = rc.begin; c < rc.end; ++c)
        if (has_tap_on(dc, c, element.at[2])) visit((a * db.out + b) * dc.out + c, a, b, c);
    }
  }
}

__device__ __forceinline__ uint32_t thread_number() { return blockIdx.x * kPoolThreads + threadIdx.x; }

}  // namespace

__global__ void __launch_bounds__(kPoolThreads) max_pool(MaxPool p) {
  const uint32_t i = thread_number();
  if (int64_t{i} >= p.y.count) return;
  const Spot spot = spot_of(p.window, i);
  Largest most{-math::infinity(), -1};
  for_each_tap(p.window, spot,
               [&](int32_t place) { take(most, p.x[spot.plane * p.window.in_plane + place], place); });
  p.y[i] = most.value;
  p.indices[i] = most.place;
}
WEFT_KERNEL_ENTRY(max_pool, MaxPool)

__global__ void __launch_bounds__(kPoolThreads) max_pool_wide(MaxPool p) {
  const int64_t i = int64_t{blockIdx.x} * (kPoolThreads / 32) + threadIdx.x / 32;
  if (i >= p.y.count) return;  // the whole warp
  const Spot spot = spot_of(p.window, static_cast<uint32_t>(i));
  Largest most{-math::infinity(), -1};
  for_each_tap_of_lane(
      p.window, spot, [&](int32_t place) { take(most, p.x[spot.plane * p.window.in_plane + place], place); });
  for (int step = 16; step > 0; step /= 2) {
    const Largest other{__shfl_xor_sync(kAllLanes, most.value, step),
                        __shfl_xor_sync(kAllLanes, most.place, step)};
    most = larger(most, other);
  }
  if (threadIdx.x % 32 != 0) return;
  p.y[i] = most.value;
  p.indices[i] = most.place;
}
WEFT_KERNEL_ENTRY(max_pool_wide, MaxPool)

__global__ void __launch_bounds__(kPoolThreads) average_pool(AveragePool p) {
  const uint32_t i = thread_number();
  if (int64_t{i} >= p.to.count) return;
  const Spot spot = spot_of(p.window, i);
  float sum = 0;
  for_each_tap(p.window, spot, [&](int32_t place) { sum += p.from[spot.plane * p.window.in_plane + place]; });
  p.to[i] = sum / divisor_of(p.window, spot, p.padding_counts != 0);
}
WEFT_KERNEL_ENTRY(average_pool, AveragePool)

__global__ void __launch_bounds__(kPoolThreads) average_pool_wide(AveragePool p) {
  const int64_t i = int64_t{blockIdx.x} * (kPoolThreads / 32) + threadIdx.x / 32;
  if (i >= p.to.count) return;  // the whole warp
  const Spot spot = spot_of(p.window, static_cast<uint32_t>(i));
  float sum = 0;
  for_each_tap_of_lane(p.window, spot,
                       [&](int32_t place) { sum += p.from[spot.plane * p.window.in_plane + place]; });
  sum = warp_fold(sum, SumOf());
  if (threadIdx.x % 32 == 0) p.to[i] = sum / divisor_of(p.window, spot, p.padding_counts != 0);
}
WEFT_KERNEL_ENTRY(average_pool_wide, AveragePool)

__global__ void __launch_bounds__(kPoolThreads) average_pool_grad(AveragePool p) {
  const uint32_t i = thread_number();
  if (int64_t{i} >= p.to.count) return;
  const Window& window = p.window;
  const Element element = element_of(window, i);
  float sum = 0;
  for_each_window(window, element, [&](int32_t o, int32_t a, int32_t b, int32_t c) {
    const Spot spot{element.plane,
                    {a * window.dims[0].stride - window.dims[0].pad_begin,
                     b * window.dims[1].stride - window.dims[1].pad_begin,
                     c * window.dims[2].stride - window.dims[2].pad_begin}};
    sum += p.from[element.plane * window.out_plane + o] / divisor_of(window, spot, p.padding_counts != 0);
  });
  p.to[i] = sum;
}
WEFT_KERNEL_ENTRY(average_pool_grad, AveragePool)

// At least one block: without that word the assembler holds registers back for more, and spills.
__global__ void __launch_bounds__(kPoolThreads, 1) max_pool_grad(MaxPoolGrad p) {
  const uint32_t i = thread_number();
  if (int64_t{i} >= p.dx.count) return;
  const Element element = element_of(p.window, i);
  float sum = 0;
  for_each_window(p.window, element, [&](int32_t o, int32_t, int32_t, int32_t) {
    const int64_t at = element.plane * p.window.out_plane + o;
    if (p.indices[at] == element.place) sum += p.dy[at];
  });
  p.dx[i] = sum;
}
WEFT_KERNEL_ENTRY(max_pool_grad, MaxPoolGrad)

__global__ void __launch_bounds__(kPoolThreads) pool_keys(PoolKeys p) {
  const int64_t i = thread_number();
  if (i >= p.keys.count) return;
  const int64_t index = p.indices[i];
  const bool inside = index >= 0 && index < p.in_plane;
  p.keys[i] = inside ? static_cast<uint32_t>(i / p.out_plane * p.in_plane + index) : p.nowhere;
}
WEFT_KERNEL_ENTRY(pool_keys, PoolKeys)

}  // namespace weft::peer::cuda
