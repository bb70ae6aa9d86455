#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/moves.h"

namespace weft::peer::cuda {

__global__ void store_context(StoreContext p) {
  if (threadIdx.x == 0 && blockIdx.x == 0) p.to[0] = p.context;
}
WEFT_KERNEL_ENTRY(store_context, StoreContext)

__global__ void __launch_bounds__(256) to_bf16(ToBf16 p) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.from.count; i += step) {
    const float x = p.from[i];
    const uint32_t bits = __float_as_uint(x);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    p.to[i] = static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded >> 16);
  }
}
WEFT_KERNEL_ENTRY(to_bf16, ToBf16)

__global__ void __launch_bounds__(256) from_bf16(FromBf16 p) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.to.count; i += step)
    p.to[i] = __uint_as_float(static_cast<uint32_t>(p.from[i]) << 16);
}
WEFT_KERNEL_ENTRY(from_bf16, FromBf16)

// A row of blocks for each channel of each sample: no division by element.
__global__ void __launch_bounds__(256) add_bias(AddBias p) {
  const int64_t planes = p.y.count / p.inner;
  for (int64_t plane = blockIdx.y; plane < planes; plane += gridDim.y) {
    const float bias = p.bias[plane % p.channels];
    const int64_t begin = plane * p.inner;
    for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.inner; i += int64_t{gridDim.x} * blockDim.x)
      p.y[begin + i] = p.y[begin + i] + bias;
  }
}
WEFT_KERNEL_ENTRY(add_bias, AddBias)

}  // namespace weft::peer::cuda
