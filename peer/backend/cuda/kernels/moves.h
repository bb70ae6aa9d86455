// Small kernels that several families and the backend itself use.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

// Puts the context where kernels read it.
struct StoreContext {
  DeviceContext context;
  Array<DeviceContext> to;
};
extern const EntryOf<StoreContext> k_store_context;

// Elements that a thread of the two kernels below converts: a grid of grid_for(count / kConvertedEach).
inline constexpr int64_t kConvertedEach = 8;

// to[i] = from[i], rounded to the nearest BF16, ties to even; NaN stays NaN.
struct ToBf16 {
  Array<const float> from;
  Array<uint16_t> to;
};
extern const EntryOf<ToBf16> k_to_bf16;

// Exact.
struct FromBf16 {
  Array<const uint16_t> from;
  Array<float> to;
};
extern const EntryOf<FromBf16> k_from_bf16;

// y[i] += bias[i / inner % channels]
struct AddBias {
  Array<const float> bias;
  Array<float> y;
  int64_t inner;
  int64_t channels;
};
extern const EntryOf<AddBias> k_add_bias;

}  // namespace weft::peer::cuda
