// Matrix products by cuBLASLt: its algorithm, chosen once by its heuristics, and the run of it. Our matrices
// are row-major, cuBLASLt's column-major, so that it sees each of them transposed: for c = a b it is told c'
// = b' a', and n, the last dim of c, along which a bias lies, is its rows.
//
// Equal bits: cuBLASLt promises them for one version, architecture and number of multiprocessors. Parts of a
// sum that were computed side by side are added up in a step of their own, never in place. Float32 means
// float32: no tensor cores, whatever NVIDIA_TF32_OVERRIDE and CUBLAS_EMULATE_SINGLE_PRECISION say.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "base/result.h"
#include "peer/backend/cuda/library_ops.h"

namespace weft::peer::cuda {

struct DestroyCublas {
  void operator()(cublasLtMatmulDesc_t descriptor) const { cublasLtMatmulDescDestroy(descriptor); }
  void operator()(cublasLtMatrixLayout_t layout) const { cublasLtMatrixLayoutDestroy(layout); }
  void operator()(cublasLtMatmulPreference_t preference) const {
    cublasLtMatmulPreferenceDestroy(preference);
  }
};
template <typename Handle>
using CublasObject = std::unique_ptr<std::remove_pointer_t<Handle>, DestroyCublas>;

struct ProductOptions {
  int64_t workspace_bytes_max = int64_t{32} << 20;
  // Of what every run is given, in bytes; less than 16 excludes most of the fast algorithms.
  int64_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_bias = 256;
};

// A product with its algorithm. One thread at a time.
class ProductPlan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // "cublaslt f32 algorithm 13 tile 20 ...": with the library's version, all there is to know of the choice.
  const std::string& implementation() const { return implementation_; }

  // Submits the work. a and b are F32, for arithmetic BF16 BF16; c and the bias are F32; aligned as promised.
  // `bias` is null without one; `workspace` has workspace_bytes() at a multiple of 256, contents do not
  // matter. Overwrites c.
  Status run(cublasLtHandle_t handle, cudaStream_t stream, const void* a, const void* b, const void* bias,
             void* c, void* workspace);

 private:
  friend class ProductPlanner;
  ProductPlan() = default;

  bool has_bias_ = false;
  int64_t workspace_bytes_ = 0;
  std::string implementation_;
  cublasLtMatmulAlgo_t algorithm_{};
  CublasObject<cublasLtMatmulDesc_t> product_;
  CublasObject<cublasLtMatrixLayout_t> a_, b_, c_;
};

// Unsupported, with the shape: no algorithm that may be taken within the workspace. InvalidArgument: a spec
// that makes no sense. The handle is the device's.
Result<ProductPlan> make_product_plan(cublasLtHandle_t handle, const ProductSpec& spec,
                                      const ProductOptions& options);

}  // namespace weft::peer::cuda
