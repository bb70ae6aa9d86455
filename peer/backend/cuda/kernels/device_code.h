// The first include of every .cu file: the language that kernels are written in, on a GPU and on the shim.
//
// Rules. One struct parameter by value; WEFT_KERNEL_ENTRY(name, Struct) behind the kernel. Blocks have one
// dimension of threads, a multiple of 32 where warps exchange. Shared memory by WEFT_SHARED alone, and its
// elements only as tile[i] = x and x = tile[i]. No atomics. Exchanges within a warp are of all its lanes.
// Every sum has a fixed order that depends on shapes alone. Nothing is contracted (-fmad=false): fmaf() where
// it is wanted. No function of CUDA's math library whose bits are its own (expf, logf, tanhf, powf, ...):
// those are in kernels/math.cuh; fmaf, sqrtf, fabsf, floorf, ceilf, rintf, truncf, fminf and fmaxf are exact.
#pragma once

#if defined(__CUDACC__)

#include "peer/backend/cuda/kernels/launch.h"

#define WEFT_SHARED(T, name, count) __shared__ T name[count]

namespace weft::peer::cuda {
// What a thread loads and stores at once.
template <typename T>
struct alignas(4 * sizeof(T)) Vector4 {
  T x, y, z, w;
};
// REQUIRES: i is a multiple of 4, and the array begins at a multiple of four elements' size.
template <typename T>
__device__ __forceinline__ Vector4<T> load4(const Array<const T>& from, int64_t i) {
  return *reinterpret_cast<const Vector4<T>*>(from.data + i);
}
template <typename T>
__device__ __forceinline__ void store4(const Array<T>& to, int64_t i, Vector4<T> v) {
  *reinterpret_cast<Vector4<T>*>(to.data + i) = v;
}
using Float4 = Vector4<float>;
}  // namespace weft::peer::cuda

#else

#define WEFT_CUDA_SHIM 1
#include "peer/backend/cuda/kernels/launch.h"
#include "peer/backend/cuda/shim/shim.h"

#if defined(WEFT_CUDA_PAPER)
// Entries without code, for who asks whether there is a kernel and never runs it (coverage.h): as unused
// functions kernels leave nothing behind.
#undef __global__
#undef __device__
#undef __forceinline__
#define __global__ [[maybe_unused]] static
#define __device__ inline
#define __forceinline__
#undef WEFT_KERNEL_ENTRY
#define WEFT_KERNEL_ENTRY(kernel, Parameters) \
  const ::weft::peer::cuda::EntryOf<Parameters> k_##kernel{{#kernel, nullptr, nullptr, sizeof(Parameters)}};
#endif

#define WEFT_SHARED(T, name, count) \
  static char name##_site;          \
  const ::weft::peer::cuda::shim::Shared<T> name(&name##_site, (count), #name)

namespace weft::peer::cuda {
template <typename T>
struct Vector4 {
  T x, y, z, w;
};
template <typename T>
Vector4<T> load4(const Array<const T>& from, int64_t i) {
  if (i % 4 != 0 || reinterpret_cast<uintptr_t>(from.data) % (4 * sizeof(T)) != 0)
    shim::fault("a load of four that is not aligned");
  return {from[i], from[i + 1], from[i + 2], from[i + 3]};
}
template <typename T>
void store4(const Array<T>& to, int64_t i, Vector4<T> v) {
  if (i % 4 != 0 || reinterpret_cast<uintptr_t>(to.data) % (4 * sizeof(T)) != 0)
    shim::fault("a store of four that is not aligned");
  to[i] = v.x, to[i + 1] = v.y, to[i + 2] = v.z, to[i + 3] = v.w;
}
using Float4 = Vector4<float>;
}  // namespace weft::peer::cuda

#endif
