#include "peer/backend/cuda/cuda_libraries.h"

#include <algorithm>
#include <utility>

#include "peer/backend/cuda/cublas_product.h"
#include "peer/backend/cuda/library_errors.h"

namespace weft::peer::cuda {
namespace {

constexpr int64_t kAlignment = 256;

// What every place in memory at a multiple of `bytes` from an aligned one is a multiple of.
int64_t alignment_at(int64_t bytes) { return std::min(kAlignment, bytes & -bytes); }

// A spec's products may be made one by one, at matrices that follow each other: they are aligned as these
// are, which is never less than cuBLASLt needs of their rows anyway.
ProductOptions options_of(const ProductSpec& spec) {
  const int64_t element = spec.arithmetic == Arithmetic::BF16 ? 2 : 4;
  return {.alignment_a = alignment_at(spec.m * spec.k * element),
          .alignment_b = alignment_at(spec.k * spec.n * element),
          .alignment_c = alignment_at(spec.m * spec.n * 4)};
}

class Product final : public CudaLibraryOp {
 public:
  Product(std::shared_ptr<cublasLtContext> blas, cudaStream_t stream, ProductPlan plan)
      : blas_(std::move(blas)), stream_(stream), plan_(std::move(plan)) {}
  Bytes workspace_bytes() const override { return {plan_.workspace_bytes()}; }
  std::string implementation() const override { return plan_.implementation(); }
  Status run(const LibraryOperands& operands) const override {
    return plan_.run(blas_.get(), stream_, operands.first, operands.second, operands.bias, operands.result,
                     operands.workspace);
  }

 private:
  const std::shared_ptr<cublasLtContext> blas_;
  const cudaStream_t stream_;
  mutable ProductPlan plan_;  // notes the bias's address; one thread drives the device
};

class Convolution final : public CudaLibraryOp {
 public:
  Convolution(std::shared_ptr<cudnnContext> dnn, ConvolutionPlan plan)
      : dnn_(std::move(dnn)), plan_(std::move(plan)) {}
  Bytes workspace_bytes() const override { return {plan_.workspace_bytes()}; }
  std::string implementation() const override { return plan_.implementation(); }
  Status run(const LibraryOperands& operands) const override {
    return plan_.run(dnn_.get(), operands.first, operands.second, /*bias=*/nullptr, operands.result,
                     operands.workspace);
  }

 private:
  const std::shared_ptr<cudnnContext> dnn_;
  const ConvolutionPlan plan_;
};

}  // namespace

Status CudaLibraries::open() {
  cublasLtHandle_t blas = nullptr;
  WEFT_TRY_STATUS(cublas_status(cublasLtCreate(&blas), "its start"));
  blas_ = {blas, [](cublasLtContext* handle) { cublasLtDestroy(handle); }};
  cudnnHandle_t dnn = nullptr;
  WEFT_TRY_STATUS(cudnn_status(cudnnCreate(&dnn), "its start"));
  dnn_ = {dnn, [](cudnnContext* handle) { cudnnDestroy(handle); }};
  WEFT_TRY_STATUS(cudnn_status(cudnnSetStream(dnn, stream_), "its stream"));
  WEFT_TRY(target_, CudnnTarget::of_device(dnn));
  return {};
}

Result<std::shared_ptr<LibraryOp>> CudaLibraries::make_product(const ProductSpec& spec) const {
  WEFT_TRY(ProductPlan plan, make_product_plan(blas_.get(), spec, options_of(spec)));
  return std::make_shared<Product>(blas_, stream_, std::move(plan));
}

Result<std::shared_ptr<LibraryOp>> CudaLibraries::make_convolution(const ConvolutionSpec& spec) const {
  WEFT_TRY(ConvolutionPlan plan, make_convolution_plan(*target_, spec, {}));
  return std::make_shared<Convolution>(dnn_, std::move(plan));
}

}  // namespace weft::peer::cuda
