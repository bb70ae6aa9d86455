// What a kernel and the one who launches it agree on. Each kernel takes one plain struct by value; memory
// comes in it as Arrays, which know their ends. Read by three compilers: nvcc for a GPU, the host's for the
// code that launches, and the host's again for kernels on the shim (peer/backend/cuda/shim), where an index
// beyond an Array's end is a fault; also by NVRTC, so that nothing is included there.
#pragma once

#if defined(__CUDACC_RTC__)
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long;
using uint64_t = unsigned long;
#else
#include <cstddef>
#include <cstdint>
#endif

#if defined(WEFT_CUDA_SHIM)
#include "peer/backend/cuda/shim/fault.h"
#endif

namespace weft::peer::cuda {

// Elements in device memory. `count` of them may be touched.
template <typename T>
struct Array {
  T* data = nullptr;
  int64_t count = 0;

#if defined(__CUDACC__)
  __device__ __forceinline__ T& operator[](int64_t i) const { return data[i]; }
  __device__ __forceinline__ bool present() const { return data != nullptr; }
#elif defined(WEFT_CUDA_SHIM)
  T& operator[](int64_t i) const {
    if (i < 0 || i >= count) shim::fault_index("global memory", i, count);
    return data[i];
  }
  bool present() const { return data != nullptr; }
#endif
};

// Where in the run a kernel is; lies in device memory, so that a recorded launch can be repeated with other
// numbers (peer::StepContext).
struct DeviceContext {
  uint64_t seed = 0;
  uint64_t step = 0;
  int64_t sample_position = 0;
  int64_t microbatch_size = 1;
};

#if !defined(__CUDACC_RTC__)

// Blocks of threads. At most 1024 threads a block, 2^31 - 1 blocks in x and 65535 in y.
struct Grid {
  uint32_t blocks = 1;
  uint32_t threads = 1;
  uint32_t blocks_y = 1;
};

// A kernel that was compiled with the program.
struct Entry {
  const char* name;
  const void* function;
  // On the shim: calls it, for one thread, with the struct that `parameters` points to. Null on a GPU.
  void (*on_host)(const void* function, const void* parameters);
  size_t parameter_bytes;
};
template <typename Parameters>
struct EntryOf : Entry {};

#if defined(__CUDACC__)
#define WEFT_KERNEL_ENTRY(kernel, Parameters)                                                      \
  const ::weft::peer::cuda::EntryOf<Parameters> k_##kernel{                                        \
      {#kernel, reinterpret_cast<const void*>(static_cast<void (*)(Parameters)>(kernel)), nullptr, \
       sizeof(Parameters)}};
#elif defined(WEFT_CUDA_SHIM)
template <typename Parameters>
void call_on_host(const void* function, const void* parameters) {
  reinterpret_cast<void (*)(Parameters)>(const_cast<void*>(function))(
      *static_cast<const Parameters*>(parameters));
}
#define WEFT_KERNEL_ENTRY(kernel, Parameters)                                             \
  const ::weft::peer::cuda::EntryOf<Parameters> k_##kernel{                               \
      {#kernel, reinterpret_cast<const void*>(static_cast<void (*)(Parameters)>(kernel)), \
       &::weft::peer::cuda::call_on_host<Parameters>, sizeof(Parameters)}};
#endif

#endif

}  // namespace weft::peer::cuda
