#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/moves.h"

namespace weft::peer::cuda {

__global__ void store_context(StoreContext p) {
  if (threadIdx.x == 0 && blockIdx.x == 0) p.to[0] = p.context;
}
WEFT_KERNEL_ENTRY(store_context, StoreContext)

namespace {

__device__ __forceinline__ uint16_t narrow(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded >> 16);
}
__device__ __forceinline__ float widen(uint16_t x) { return __uint_as_float(static_cast<uint32_t>(x) << 16); }

__device__ __forceinline__ Vector4<uint16_t> convert(Float4 v) { return {narrow(v.x), narrow(v.y), narrow(v.z), narrow(v.w)}; }
__device__ __forceinline__ Float4 convert(Vector4<uint16_t> v) { return {widen(v.x), widen(v.y), widen(v.z), widen(v.w)}; }
__device__ __forceinline__ uint16_t convert(float v) { return narrow(v); }
__device__ __forceinline__ float convert(uint16_t v) { return widen(v); }

// Vector4 elements at a time, two times a thread: a memory is not kept busy by less. Then the rest.
template <typename From, typename To>
__device__ __forceinline__ void convert_all(const Array<const From>& from, const Array<To>& to) {
  const int64_t quads = from.count / 4, half = (quads + 1) / 2;
  const int64_t first = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = first; i < half; i += step) {
    const bool is_second = half + i < quads;
    const auto a = load4(from, 4 * i), b = is_second ? load4(from, 4 * (half + i)) : a;
    store4(to, 4 * i, convert(a));
    if (is_second) store4(to, 4 * (half + i), convert(b));
  }
  for (int64_t i = 4 * quads + first; i < from.count; i += step) to[i] = convert(from[i]);
}

}  // namespace

__global__ void __launch_bounds__(256) to_bf16(ToBf16 p) { convert_all(p.from, p.to); }
WEFT_KERNEL_ENTRY(to_bf16, ToBf16)

__global__ void __launch_bounds__(256) from_bf16(FromBf16 p) { convert_all(p.from, p.to); }
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
