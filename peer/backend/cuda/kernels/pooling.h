// Kernels of windows that slide over planes of one to three dims. Fewer dims are seen as three with leading
// ones.
#pragma once

#include "peer/backend/cuda/kernels/index.cuh"

namespace weft::peer::cuda {

inline constexpr uint32_t kPoolThreads = 256;

struct WindowDim {
  int32_t in = 1, out = 1, kernel = 1, stride = 1, dilation = 1, pad_begin = 0, pad_end = 0;
  Divider by_in, by_out, by_kernel, by_stride, by_dilation;
};
struct Window {
  WindowDim dims[3];  // outermost first
  int64_t in_plane = 1, out_plane = 1;
  int32_t taps = 1;
};

struct MaxPool {
  Window window;
  Array<const float> x;
  Array<float> y;
  Array<int32_t> indices;
};
// A thread a window, and a warp a window, for large ones.
extern const EntryOf<MaxPool> k_max_pool;
extern const EntryOf<MaxPool> k_max_pool_wide;

struct AveragePool {
  Window window;
  int32_t padding_counts;
  Array<const float> from;  // x, or dy
  Array<float> to;          // y, or dx
};
extern const EntryOf<AveragePool> k_average_pool;
extern const EntryOf<AveragePool> k_average_pool_wide;
extern const EntryOf<AveragePool> k_average_pool_grad;

// Indices that such a window gave: an element looks for itself in the windows that hold it.
struct MaxPoolGrad {
  Window window;
  Array<const float> dy;
  Array<const int32_t> indices;
  Array<float> dx;
};
extern const EntryOf<MaxPoolGrad> k_max_pool_grad;

// Any indices: the element of dx that each dy goes to, `nowhere` for none.
struct PoolKeys {
  Array<const int32_t> indices;
  Array<uint32_t> keys;
  int64_t in_plane, out_plane;
  uint32_t nowhere;
};
extern const EntryOf<PoolKeys> k_pool_keys;

}  // namespace weft::peer::cuda
