// Kernels of ops that read between elements. Where a sample lies is worked out in double, as every backend
// does it (peer/backend/reference/places.h), once for many channels; the sums are float.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"

namespace weft::peer::cuda {

inline constexpr uint32_t kSampleThreads = 256;

// ---- along one axis ----

// y[outer, out, inner] from x[outer, size, inner]; indices and weights [out, taps].
struct Resample {
  Array<const int64_t> indices;
  Array<const float> weights, x;
  Array<float> y;
  Divider inner, out;
  int64_t size, taps;
};
extern const EntryOf<Resample> k_resample;

// The element that each index means; `size` for those outside.
struct TapKeys {
  Array<const int64_t> indices;
  int64_t size;
  Array<uint32_t> keys;
};
extern const EntryOf<TapKeys> k_tap_keys;

// ---- at the points of a grid ----

enum class GridPadding : int32_t { Zeros, Border, Reflection };
struct GridGeometry {
  Array<const float> grid;  // [images, points, dims], the innermost dim's coordinate first
  int64_t images, points, channels;
  int32_t size[3];  // of x's plane; depth 1 in two dims
  GridPadding padding;
  int32_t align_corners;
};
// A block's y takes every gridDim.y-th channel.
struct GridSample {
  GridGeometry geometry;
  Array<const float> x;
  Array<float> y;
};
struct GridGrad {
  GridGeometry geometry;
  Array<const float> dy, x;
  Array<float> dgrid;
};
// What each sample reads: an element counted over all images, and by which weight. `nowhere` for what it does
// not.
struct GridKeys {
  GridGeometry geometry;
  uint32_t nowhere;
  Array<uint32_t> keys;  // [images, points, taps]
  Array<float> weights;
};

// Taps of a sample: along each dim 1 (nearest), 2 (linear) or 4 (cubic).
#define WEFT_DECLARE_GRID(name)                          \
  extern const EntryOf<GridSample> k_grid_sample_##name; \
  extern const EntryOf<GridGrad> k_grid_grad_##name;     \
  extern const EntryOf<GridKeys> k_grid_keys_##name;
WEFT_DECLARE_GRID(nearest2)
WEFT_DECLARE_GRID(nearest3)
WEFT_DECLARE_GRID(linear2)
WEFT_DECLARE_GRID(linear3)
WEFT_DECLARE_GRID(cubic2)
#undef WEFT_DECLARE_GRID

// ---- under the taps of a deformed window ----

struct DeformGeometry {
  Array<const float> offset;  // [images * groups, taps, y and x, windows]
  Array<const float> mask;    // [images * groups, taps, windows]; absent: one
  Divider windows, taps, columns, kernel_columns;
  int64_t parts;     // images * groups
  int64_t channels;  // of a group
  int32_t height, width;
  int32_t row_stride, column_stride, row_dilation, column_dilation, row_pad, column_pad;
};
// x [parts, channels, plane], y [parts, channels, taps, windows].
struct DeformColumns {
  DeformGeometry geometry;
  Array<const float> x;
  Array<float> y;
};
extern const EntryOf<DeformColumns> k_deform_columns;
struct DeformGrad {
  DeformGeometry geometry;
  Array<const float> dy, x;
  Array<float> doffset, dmask;
};
extern const EntryOf<DeformGrad> k_deform_grad;
struct DeformKeys {
  DeformGeometry geometry;
  uint32_t nowhere;
  Array<uint32_t> keys;  // [parts, taps, windows, 4]
  Array<float> weights;
};
extern const EntryOf<DeformKeys> k_deform_keys;

}  // namespace weft::peer::cuda
