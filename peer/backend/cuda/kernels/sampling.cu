#include "peer/backend/cuda/kernels/places.cuh"
#include "peer/backend/cuda/kernels/sampling.h"

namespace weft::peer::cuda {
namespace {

// ---- GridSample ----

// Back and forth between the plane's ends: the middle of the outermost elements, or their outer edges.
__device__ __forceinline__ Place reflected(Place place, int32_t size, bool align_corners) {
  const double low = align_corners ? 0.0 : -0.5, span = static_cast<double>(align_corners ? size - 1 : size);
  if (span <= 0.0) return {0.0, 0.0};
  const double distance = fabs(place.at - low), rest = fmod(distance, span);
  const bool turned = fmod(floor(distance / span), 2.0) != 0.0;
  const double direction = (place.at < low ? -1.0 : 1.0) * (turned ? -1.0 : 1.0);
  return {turned ? low + span - rest : low + rest, place.slope * direction};
}
__device__ __forceinline__ Place clipped(Place place, int32_t size) {
  const auto last = static_cast<double>(size - 1);
  if (place.at <= 0.0) return {0.0, 0.0};
  if (place.at >= last) return {last, 0.0};
  return place;
}
__device__ __forceinline__ Place padded(Place place, int32_t size, const GridGeometry& g) {
  if (g.padding == GridPadding::Zeros) return place;
  if (g.padding == GridPadding::Reflection) place = reflected(place, size, g.align_corners != 0);
  return clipped(place, size);
}
__device__ __forceinline__ Place unpadded(float coordinate, int32_t size, bool align_corners) {
  const auto n = static_cast<double>(size), x = static_cast<double>(coordinate);
  if (align_corners) return {(x + 1.0) / 2.0 * (n - 1.0), (n - 1.0) / 2.0};
  return {((x + 1.0) * n - 1.0) / 2.0, n / 2.0};
}

// The cubic's weight at a distance, and its slope, with PyTorch's a = -0.75.
__device__ __forceinline__ double cubic_at(double d) {
  constexpr double kA = -0.75;
  if (d <= 1.0) return ((kA + 2.0) * d - (kA + 3.0)) * d * d + 1.0;
  return ((kA * d - 5.0 * kA) * d + 8.0 * kA) * d - 4.0 * kA;
}
__device__ __forceinline__ double cubic_slope_at(double d) {
  constexpr double kA = -0.75;
  if (d <= 1.0) return (3.0 * (kA + 2.0) * d - 2.0 * (kA + 3.0)) * d;
  return (3.0 * kA * d - 10.0 * kA) * d + 8.0 * kA;
}

template <int kTaps, int kDims>
struct GridTaps;
// As ONNX has it: a half goes to the even element, and what is padded is the element. Whether a place is a
// half is a matter of rounding, so that it is worked out in the grid's own type.
template <int kDims>
struct GridTaps<1, kDims> {
  static __device__ __forceinline__ Taps<1> of(const GridGeometry& g, float coordinate, int32_t size) {
    const auto n = static_cast<float>(size);
    const float place = g.align_corners != 0 ? (coordinate + 1.0f) / 2.0f * (n - 1.0f)
                                             : ((coordinate + 1.0f) * n - 1.0f) / 2.0f;
    const Place element = padded({rint(static_cast<double>(place)), 0.0}, size, g);
    Taps<1> taps;
    taps.set_none(0);
    if (is_reachable(element.at, size)) taps.set(0, static_cast<int64_t>(rint(element.at)), size, 1.0, 0.0);
    return taps;
  }
};
template <int kDims>
struct GridTaps<2, kDims> {
  static __device__ __forceinline__ Taps<2> of(const GridGeometry& g, float coordinate, int32_t size) {
    return linear_taps(padded(unpadded(coordinate, size, g.align_corners != 0), size, g), size);
  }
};
// Not the place is padded but each of the four elements, as PyTorch does.
template <int kDims>
struct GridTaps<4, kDims> {
  static __device__ __forceinline__ Taps<4> of(const GridGeometry& g, float coordinate, int32_t size) {
    const Place place = unpadded(coordinate, size, g.align_corners != 0);
    const double first = floor(place.at);
    const bool is_number = fabs(first) < 1e15;
    Taps<4> taps;
    WEFT_UNROLL
    for (int k = 0; k < 4; ++k) {
      taps.set_none(k);
      const double at = first + static_cast<double>(k - 1), distance = place.at - at;
      const Place element = padded({at, 1.0}, size, g);
      if (!is_number || !is_reachable(element.at, size)) continue;
      const double sign = distance < 0.0 ? -1.0 : 1.0;
      taps.set(k, static_cast<int64_t>(rint(element.at)), size, cubic_at(fabs(distance)),
               cubic_slope_at(fabs(distance)) * sign * place.slope);
    }
    return taps;
  }
};

// What one sample reads of a plane.
template <int kZ, int kY, int kX>
struct Sample {
  static constexpr int kTaps = kZ * kY * kX;
  Taps<kZ> z;
  Taps<kY> y;
  Taps<kX> x;

  // Calls visit(number of the tap, element of the plane or -1, a, b, c) for each.
  template <typename Visit>
  __device__ __forceinline__ void for_each(int32_t height, int32_t width, const Visit& visit) const {
    WEFT_UNROLL
    for (int a = 0; a < kZ; ++a) {
      WEFT_UNROLL
      for (int b = 0; b < kY; ++b) {
        WEFT_UNROLL
        for (int c = 0; c < kX; ++c) {
          const bool inside = z.index[a] >= 0 && y.index[b] >= 0 && x.index[c] >= 0;
          visit((a * kY + b) * kX + c,
                inside ? (int64_t{z.index[a]} * height + y.index[b]) * width + x.index[c] : int64_t{-1}, a, b,
                c);
        }
      }
    }
  }
  __device__ __forceinline__ float weight(int a, int b, int c) const {
    return z.weight[a] * y.weight[b] * x.weight[c];
  }
};

template <int kTaps, int kDims>
using SampleOf = Sample<kDims == 3 ? kTaps : 1, kTaps, kTaps>;

template <int kTaps, int kDims>
__device__ __forceinline__ SampleOf<kTaps, kDims> sample_at(const GridGeometry& g, int64_t point) {
  SampleOf<kTaps, kDims> sample;
  sample.x = GridTaps<kTaps, kDims>::of(g, g.grid[point * kDims], g.size[2]);
  sample.y = GridTaps<kTaps, kDims>::of(g, g.grid[point * kDims + 1], g.size[1]);
  if constexpr (kDims == 3) {
    sample.z = GridTaps<kTaps, kDims>::of(g, g.grid[point * kDims + 2], g.size[0]);
  } else {
    sample.z.set(0, 0, 1, 1.0, 0.0);
  }
  return sample;
}
__device__ __forceinline__ int64_t plane_of(const GridGeometry& g) {
  return int64_t{g.size[0]} * g.size[1] * g.size[2];
}

template <int kTaps, int kDims>
__device__ __forceinline__ void grid_sample(const GridSample& p) {
  const GridGeometry& g = p.geometry;
  const int64_t i = thread_number();
  if (i >= g.images * g.points) return;
  const auto sample = sample_at<kTaps, kDims>(g, i);
  const int64_t image = i / g.points, point = i - image * g.points, plane = plane_of(g);
  for (int64_t channel = blockIdx.y; channel < g.channels; channel += gridDim.y) {
    const int64_t of_plane = image * g.channels + channel;
    float sum = 0;
    sample.for_each(g.size[1], g.size[2], [&](int, int64_t from, int a, int b, int c) {
      if (from >= 0) sum += sample.weight(a, b, c) * p.x[of_plane * plane + from];
    });
    p.y[of_plane * g.points + point] = sum;
  }
}

// dgrid: how the sum over all channels grows with each coordinate.
template <int kTaps, int kDims>
__device__ __forceinline__ void grid_grad(const GridGrad& p) {
  const GridGeometry& g = p.geometry;
  const int64_t i = thread_number();
  if (i >= g.images * g.points) return;
  const auto sample = sample_at<kTaps, kDims>(g, i);
  const int64_t image = i / g.points, point = i - image * g.points, plane = plane_of(g);
  float shares[SampleOf<kTaps, kDims>::kTaps] = {};  // of each element in the cotangent, over the channels
  for (int64_t channel = 0; channel < g.channels; ++channel) {
    const int64_t of_plane = image * g.channels + channel;
    const float dy = p.dy[of_plane * g.points + point];
    sample.for_each(g.size[1], g.size[2], [&](int k, int64_t from, int, int, int) {
      if (from >= 0) shares[k] += dy * p.x[of_plane * plane + from];
    });
  }
  float sums[3] = {};
  sample.for_each(g.size[1], g.size[2], [&](int k, int64_t from, int a, int b, int c) {
    if (from < 0) return;
    sums[0] += sample.z.weight[a] * sample.y.weight[b] * sample.x.slope[c] * shares[k];
    sums[1] += sample.z.weight[a] * sample.y.slope[b] * sample.x.weight[c] * shares[k];
    sums[2] += sample.z.slope[a] * sample.y.weight[b] * sample.x.weight[c] * shares[k];
  });
  WEFT_UNROLL
  for (int d = 0; d < kDims; ++d) p.dgrid[i * kDims + d] = sums[d];
}

template <int kTaps, int kDims>
__device__ __forceinline__ void grid_keys(const GridKeys& p) {
  const GridGeometry& g = p.geometry;
  const int64_t i = thread_number();
  if (i >= g.images * g.points) return;
  const auto sample = sample_at<kTaps, kDims>(g, i);
  const int64_t first = i / g.points * plane_of(g);
  sample.for_each(g.size[1], g.size[2], [&](int k, int64_t from, int a, int b, int c) {
    const int64_t entry = i * SampleOf<kTaps, kDims>::kTaps + k;
    p.keys[entry] = from >= 0 ? static_cast<uint32_t>(first + from) : p.nowhere;
    p.weights[entry] = sample.weight(a, b, c);
  });
}

// ---- DeformColumns ----

// A tap of a window: where its mask, its offsets and its column lie, and what it reads.
struct DeformedTap {
  int64_t part;          // image and group
  int64_t mask, offset;  // the offset's y; its x stands `windows` places after it
  int64_t column;        // of the channel: tap and window
  float factor;
  Sample<1, 2, 2> sample;
};
__device__ __forceinline__ DeformedTap deformed_tap(const DeformGeometry& g, uint32_t i) {
  uint32_t rest = i;
  const uint32_t window = take_remainder(rest, g.windows), tap = take_remainder(rest, g.taps);
  DeformedTap at;
  at.part = int64_t{rest};
  at.mask = int64_t{i};
  at.offset = 2 * (at.mask - int64_t{window}) + int64_t{window};
  at.column = int64_t{tap} * g.windows.divisor + window;
  at.factor = g.mask.present() ? g.mask[at.mask] : 1.0f;
  uint32_t row = window, kernel_row = tap;
  const auto column = static_cast<int32_t>(take_remainder(row, g.columns));
  const auto kernel_column = static_cast<int32_t>(take_remainder(kernel_row, g.kernel_columns));
  const int32_t y = static_cast<int32_t>(row) * g.row_stride - g.row_pad +
                    static_cast<int32_t>(kernel_row) * g.row_dilation;
  const int32_t x = column * g.column_stride - g.column_pad + kernel_column * g.column_dilation;
  const double dy = static_cast<double>(g.offset[at.offset]);
  const double dx = static_cast<double>(g.offset[at.offset + g.windows.divisor]);
  at.sample.z.set(0, 0, 1, 1.0, 0.0);
  at.sample.y = linear_taps({static_cast<double>(y) + dy, 1.0}, g.height);
  at.sample.x = linear_taps({static_cast<double>(x) + dx, 1.0}, g.width);
  return at;
}
__device__ __forceinline__ int64_t taps_of(const DeformGeometry& g) {
  return g.parts * g.taps.divisor * g.windows.divisor;
}

}  // namespace

__global__ void __launch_bounds__(kSampleThreads) resample(Resample p) {
  const int64_t i = thread_number();
  if (i >= p.y.count) return;
  auto outer = static_cast<uint32_t>(i);
  const int64_t column = take_remainder(outer, p.inner), o = take_remainder(outer, p.out);
  float sum = 0;
  for (int64_t t = 0; t < p.taps; ++t) {
    const int64_t index = p.indices[o * p.taps + t];
    if (index < 0 || index >= p.size) continue;
    sum += p.weights[o * p.taps + t] * p.x[(int64_t{outer} * p.size + index) * p.inner.divisor + column];
  }
  p.y[i] = sum;
}
WEFT_KERNEL_ENTRY(resample, Resample)

__global__ void __launch_bounds__(kSampleThreads) tap_keys(TapKeys p) {
  const int64_t i = thread_number();
  if (i >= p.keys.count) return;
  const int64_t index = p.indices[i];
  p.keys[i] = static_cast<uint32_t>(index < 0 || index >= p.size ? p.size : index);
}
WEFT_KERNEL_ENTRY(tap_keys, TapKeys)

#define WEFT_GRID(name, taps, dims)                                                    \
  __global__ void __launch_bounds__(kSampleThreads) grid_sample_##name(GridSample p) { \
    grid_sample<taps, dims>(p);                                                        \
  }                                                                                    \
  WEFT_KERNEL_ENTRY(grid_sample_##name, GridSample)                                    \
  __global__ void __launch_bounds__(kSampleThreads) grid_grad_##name(GridGrad p) {     \
    grid_grad<taps, dims>(p);                                                          \
  }                                                                                    \
  WEFT_KERNEL_ENTRY(grid_grad_##name, GridGrad)                                        \
  __global__ void __launch_bounds__(kSampleThreads) grid_keys_##name(GridKeys p) {     \
    grid_keys<taps, dims>(p);                                                          \
  }                                                                                    \
  WEFT_KERNEL_ENTRY(grid_keys_##name, GridKeys)
WEFT_GRID(nearest2, 1, 2)
WEFT_GRID(nearest3, 1, 3)
WEFT_GRID(linear2, 2, 2)
WEFT_GRID(linear3, 2, 3)
WEFT_GRID(cubic2, 4, 2)

__global__ void __launch_bounds__(kSampleThreads) deform_columns(DeformColumns p) {
  const DeformGeometry& g = p.geometry;
  const int64_t i = thread_number(), columns = int64_t{g.taps.divisor} * g.windows.divisor;
  if (i >= taps_of(g)) return;
  const DeformedTap at = deformed_tap(g, static_cast<uint32_t>(i));
  const int64_t plane = int64_t{g.height} * g.width;
  for (int64_t channel = blockIdx.y; channel < g.channels; channel += gridDim.y) {
    const int64_t of_plane = at.part * g.channels + channel;
    float sum = 0;
    at.sample.for_each(g.height, g.width, [&](int, int64_t from, int a, int b, int c) {
      if (from >= 0) sum += at.sample.weight(a, b, c) * p.x[of_plane * plane + from];
    });
    p.y[of_plane * columns + at.column] = at.factor * sum;
  }
}
WEFT_KERNEL_ENTRY(deform_columns, DeformColumns)

__global__ void __launch_bounds__(kSampleThreads) deform_grad(DeformGrad p) {
  const DeformGeometry& g = p.geometry;
  const int64_t i = thread_number(), columns = int64_t{g.taps.divisor} * g.windows.divisor;
  if (i >= taps_of(g)) return;
  const DeformedTap at = deformed_tap(g, static_cast<uint32_t>(i));
  const int64_t plane = int64_t{g.height} * g.width;
  float shares[4] = {};  // of each element in the cotangent, over the channels
  for (int64_t channel = 0; channel < g.channels; ++channel) {
    const int64_t of_plane = at.part * g.channels + channel;
    const float dy = p.dy[of_plane * columns + at.column];
    at.sample.for_each(g.height, g.width, [&](int k, int64_t from, int, int, int) {
      if (from >= 0) shares[k] += dy * p.x[of_plane * plane + from];
    });
  }
  float by_y = 0, by_x = 0, by_mask = 0;
  at.sample.for_each(g.height, g.width, [&](int k, int64_t from, int a, int b, int c) {
    if (from < 0) return;
    by_y += at.sample.y.slope[b] * at.sample.x.weight[c] * shares[k];
    by_x += at.sample.y.weight[b] * at.sample.x.slope[c] * shares[k];
    by_mask += at.sample.weight(a, b, c) * shares[k];
  });
  p.doffset[at.offset] = at.factor * by_y;
  p.doffset[at.offset + g.windows.divisor] = at.factor * by_x;
  if (p.dmask.present()) p.dmask[at.mask] = by_mask;
}
WEFT_KERNEL_ENTRY(deform_grad, DeformGrad)

__global__ void __launch_bounds__(kSampleThreads) deform_keys(DeformKeys p) {
  const DeformGeometry& g = p.geometry;
  const int64_t i = thread_number();
  if (i >= taps_of(g)) return;
  const DeformedTap at = deformed_tap(g, static_cast<uint32_t>(i));
  const int64_t first = at.part * g.height * g.width;
  at.sample.for_each(g.height, g.width, [&](int k, int64_t from, int a, int b, int c) {
    p.keys[i * 4 + k] = from >= 0 ? static_cast<uint32_t>(first + from) : p.nowhere;
    p.weights[i * 4 + k] = at.factor * at.sample.weight(a, b, c);
  });
}
WEFT_KERNEL_ENTRY(deform_keys, DeformKeys)

}  // namespace weft::peer::cuda
