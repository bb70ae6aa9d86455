// cuBLASLt and cuDNN behind the seam: their handles, and products and convolutions as LibraryOps.
#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <memory>
#include <optional>

#include "base/result.h"
#include "peer/backend/cuda/cuda_core.h"
#include "peer/backend/cuda/cudnn_convolution.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

struct LibraryOperands {
  const std::byte *first, *second, *bias;
  std::byte *result, *workspace;
};

// Keeps the handle that it runs with.
class CudaLibraryOp : public LibraryOp, public std::enable_shared_from_this<CudaLibraryOp> {
 public:
  // Submits the work to the stream that the libraries were opened for.
  virtual Status run(const LibraryOperands& operands) const = 0;
};

// The thread that drives the device.
class CudaLibraries {
 public:
  explicit CudaLibraries(cudaStream_t stream) : stream_(stream) {}
  // REQUIRES: the GPU is the thread's. Errors: of the libraries.
  Status open();

  Result<std::shared_ptr<LibraryOp>> make_product(const ProductSpec& spec) const;
  Result<std::shared_ptr<LibraryOp>> make_convolution(const ConvolutionSpec& spec) const;

 private:
  const cudaStream_t stream_;
  std::shared_ptr<cublasLtContext> blas_;
  std::shared_ptr<cudnnContext> dnn_;
  std::optional<CudnnTarget> target_;
};

}  // namespace weft::peer::cuda
