// The backend for NVIDIA GPUs, over a Device: kernels of our own, cuBLASLt and cuDNN behind it, fusion groups
// compiled as they are met. What is submitted goes to one stream; copies from and to the host beside it, by
// way of staging memory. Float32 in memory; products and convolutions in float32, TF32 or BF16.
#pragma once

#include <memory>

#include "base/result.h"
#include "base/units.h"
#include "peer/backend/backend.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer {

struct CudaOptions {
  // Device memory through which copies from and to the host go beside the kernels, for each direction. What
  // is larger than a half of it is copied between kernels.
  Bytes staging{int64_t{32} << 20};
  // Of pinned host memory kept for uploads that are under way; beyond it the caller waits.
  Bytes pinned_uploads{int64_t{128} << 20};
};

// Errors: of the device.
Result<std::unique_ptr<Backend>> make_cuda_backend(std::shared_ptr<cuda::Device> device,
                                                   const CudaOptions& options = {});

}  // namespace weft::peer
