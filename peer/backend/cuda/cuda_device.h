// The Device that is a GPU: the CUDA runtime, cuBLASLt, cuDNN and NVRTC, and nothing that decides.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "peer/backend/cuda/device.h"
#include "peer/backend/cuda/kernel_cache.h"

namespace weft::peer::cuda {

struct CudaDeviceOptions {
  int index = 0;  // as CUDA counts those that it is shown (CUDA_VISIBLE_DEVICES)
  // Where compiled kernels are kept; empty: nowhere.
  std::filesystem::path kernel_cache = KernelCache::default_folder();
};

// Takes the GPU's context, some hundred MB of its memory. Errors: as find_cuda_device (cuda_properties.h).
Result<std::shared_ptr<Device>> open_cuda_device(const CudaDeviceOptions& options);

}  // namespace weft::peer::cuda
