#include "peer/backend/cuda/cublas_product.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "peer/backend/cuda/library_errors.h"

namespace weft::peer::cuda {
namespace {

using Epilogue = ProductSpec::Epilogue;

constexpr int kChoicesMax = 16;

// Stands for a bias until there is one: the heuristics look at its address for the alignment, never behind
// it.
alignas(512) constexpr std::array<char, 512> kNowhere{};

cublasLtEpilogue_t of_cublas(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::None:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::Bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::BiasRelu:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::BiasGelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

cublasComputeType_t of_cublas(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::F32:
      return CUBLAS_COMPUTE_32F;
    case Arithmetic::TF32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Arithmetic::BF16:
      return CUBLAS_COMPUTE_32F;
  }
  return CUBLAS_COMPUTE_32F;
}

std::string_view words(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::F32:
      return "float32";
    case Arithmetic::TF32:
      return "tf32";
    case Arithmetic::BF16:
      return "bf16";
  }
  return "";
}

std::string_view words(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::None:
      return "";
    case Epilogue::Bias:
      return " bias";
    case Epilogue::BiasRelu:
      return " bias relu";
    case Epilogue::BiasGelu:
      return " bias gelu";
  }
  return "";
}

std::string describe(const ProductSpec& spec) {
  const auto matrix = [&](bool transposed, int64_t rows, int64_t columns) {
    return "[" + std::to_string(rows) + "," + std::to_string(columns) + "]" +
           (transposed ? " transposed" : "");
  };
  return std::string(words(spec.arithmetic)) + " product " + matrix(spec.transpose_a, spec.m, spec.k) + " " +
         matrix(spec.transpose_b, spec.k, spec.n) + std::string(words(spec.epilogue)) +
         (spec.batch == 1
              ? ""
              : ", " + std::to_string(spec.batch) + " times, strides " + std::to_string(spec.stride_a) + " " +
                    std::to_string(spec.stride_b) + " " + std::to_string(spec.stride_c));
}

Status check(const ProductSpec& spec) {
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, describe(spec) + ": " + what);
  };
  if (spec.m < 1 || spec.n < 1 || spec.k < 1 || spec.batch < 1) return wrong("sizes must be positive");
  if (spec.stride_a < 0 || spec.stride_b < 0 || spec.stride_c < 0)
    return wrong("strides must not be negative");
  if (spec.batch > 1 && spec.stride_c / spec.m < spec.n) return wrong("results would lie on one another");
  if (spec.batch > std::numeric_limits<int32_t>::max())
    return fail(ErrorCode::Unsupported, describe(spec) + ": more products than cuBLASLt counts");
  return {};
}

template <typename T>
Status set(cublasLtMatmulDesc_t product, cublasLtMatmulDescAttributes_t name, const T& value) {
  return cublas_status(cublasLtMatmulDescSetAttribute(product, name, &value, sizeof(value)),
                       "attribute " + std::to_string(static_cast<int>(name)) + " of a product");
}
template <typename T>
Status set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, const T& value) {
  return cublas_status(cublasLtMatrixLayoutSetAttribute(layout, name, &value, sizeof(value)),
                       "attribute " + std::to_string(static_cast<int>(name)) + " of a matrix");
}
template <typename T>
Status set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t name, const T& value) {
  return cublas_status(cublasLtMatmulPreferenceSetAttribute(preference, name, &value, sizeof(value)),
                       "attribute " + std::to_string(static_cast<int>(name)) + " of a preference");
}

template <typename T>
Result<T> config(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  size_t written = 0;
  WEFT_TRY_STATUS(
      cublas_status(cublasLtMatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof(value), &written),
                    "attribute " + std::to_string(static_cast<int>(name)) + " of an algorithm"));
  return value;
}

// " algorithm 13 tile 20 ...", each part after its name.
Result<std::string> describe(const cublasLtMatmulAlgo_t& algorithm) {
  WEFT_TRY(const auto id, config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID));
  WEFT_TRY(const auto tile, config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID));
  WEFT_TRY(const auto splits, config<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
  WEFT_TRY(const auto scheme, config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
  WEFT_TRY(const auto swizzle, config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING));
  WEFT_TRY(const auto custom, config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION));
  WEFT_TRY(const auto stages, config<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID));
  WEFT_TRY(const auto inner, config<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID));
  WEFT_TRY(const auto cluster, config<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  return " algorithm " + std::to_string(id) + " tile " + std::to_string(tile) + " splits " +
         std::to_string(splits) + " scheme " + std::to_string(scheme) + " swizzle " +
         std::to_string(swizzle) + " custom " + std::to_string(custom) + " stages " + std::to_string(stages) +
         " inner " + std::to_string(inner) + " cluster " + std::to_string(cluster);
}

}  // namespace

// The making of one plan. A and B are cuBLASLt's first and second operand: our b and a.
class ProductPlanner {
 public:
  ProductPlanner(cublasLtHandle_t handle, const ProductSpec& spec, const ProductOptions& options)
      : handle_(handle), spec_(spec), options_(options) {
    plan_.has_bias_ = spec.epilogue != Epilogue::None;
  }

  Result<ProductPlan> make() {
    WEFT_TRY_STATUS(make_product());
    WEFT_TRY_STATUS(make_layouts());
    WEFT_TRY_STATUS(make_preference());
    WEFT_TRY_STATUS(choose());
    return std::move(plan_);
  }

 private:
  // alpha and beta stay the host's, and float.
  Status make_product() {
    cublasLtMatmulDesc_t product = nullptr;
    WEFT_TRY_STATUS(cublas_status(cublasLtMatmulDescCreate(&product, of_cublas(spec_.arithmetic), CUDA_R_32F),
                                  "a product"));
    plan_.product_.reset(product);
    const int32_t transpose_a = spec_.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                  transpose_b = spec_.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    WEFT_TRY_STATUS(set(product, CUBLASLT_MATMUL_DESC_TRANSA, transpose_a));
    WEFT_TRY_STATUS(set(product, CUBLASLT_MATMUL_DESC_TRANSB, transpose_b));
    WEFT_TRY_STATUS(
        set(product, CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(of_cublas(spec_.epilogue))));
    if (!plan_.has_bias_) return {};
    const auto alignment = static_cast<size_t>(std::clamp<int64_t>(options_.alignment_bias, 1, 256));
    WEFT_TRY_STATUS(
        set(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(&kNowhere[alignment])));
    return {};
  }

  // `rows` of `columns` elements one after the other: to cuBLASLt, as many columns.
  Result<CublasObject<cublasLtMatrixLayout_t>> make_layout(cudaDataType_t type, int64_t rows, int64_t columns,
                                                           int64_t stride) const {
    cublasLtMatrixLayout_t layout = nullptr;
    WEFT_TRY_STATUS(cublas_status(cublasLtMatrixLayoutCreate(&layout, type, static_cast<uint64_t>(columns),
                                                             static_cast<uint64_t>(rows), columns),
                                  "a matrix"));
    CublasObject<cublasLtMatrixLayout_t> made(layout);
    if (spec_.batch > 1) {
      WEFT_TRY_STATUS(set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<int32_t>(spec_.batch)));
      WEFT_TRY_STATUS(set(layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, stride));
    }
    return made;
  }

  Status make_layouts() {
    const cudaDataType_t type = spec_.arithmetic == Arithmetic::BF16 ? CUDA_R_16BF : CUDA_R_32F;
    WEFT_TRY(plan_.a_, spec_.transpose_a ? make_layout(type, spec_.k, spec_.m, spec_.stride_a)
                                         : make_layout(type, spec_.m, spec_.k, spec_.stride_a));
    WEFT_TRY(plan_.b_, spec_.transpose_b ? make_layout(type, spec_.n, spec_.k, spec_.stride_b)
                                         : make_layout(type, spec_.k, spec_.n, spec_.stride_b));
    WEFT_TRY(plan_.c_, make_layout(CUDA_R_32F, spec_.m, spec_.n, spec_.stride_c));
    return {};
  }

  Status make_preference() {
    cublasLtMatmulPreference_t preference = nullptr;
    WEFT_TRY_STATUS(cublas_status(cublasLtMatmulPreferenceCreate(&preference), "a preference"));
    preference_.reset(preference);
    WEFT_TRY_STATUS(set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                        static_cast<uint64_t>(options_.workspace_bytes_max)));
    WEFT_TRY_STATUS(set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                                              CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)));
    if (spec_.arithmetic == Arithmetic::F32)
      WEFT_TRY_STATUS(set(preference, CUBLASLT_MATMUL_PREF_IMPL_MASK,
                          ~uint64_t{CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK}));
    const auto set_alignment = [&](cublasLtMatmulPreferenceAttributes_t name, int64_t alignment) {
      return set(preference, name, static_cast<uint32_t>(alignment));
    };
    WEFT_TRY_STATUS(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, options_.alignment_b));
    WEFT_TRY_STATUS(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, options_.alignment_a));
    WEFT_TRY_STATUS(set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, options_.alignment_c));
    return set_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, options_.alignment_c);
  }

  Status choose() {
    std::array<cublasLtMatmulHeuristicResult_t, kChoicesMax> choices{};
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(
        handle_, plan_.product_.get(), plan_.b_.get(), plan_.a_.get(), plan_.c_.get(), plan_.c_.get(),
        preference_.get(), kChoicesMax, choices.data(), &count);
    if (status != CUBLAS_STATUS_NOT_SUPPORTED)
      WEFT_TRY_STATUS(cublas_status(status, "the choice for a " + describe(spec_)));
    for (const cublasLtMatmulHeuristicResult_t& choice :
         std::span(choices).first(static_cast<size_t>(count))) {
      if (choice.state != CUBLAS_STATUS_SUCCESS) continue;
      WEFT_TRY(const bool may_be_taken, check(choice));
      if (!may_be_taken) continue;
      WEFT_TRY(const std::string algorithm, describe(choice.algo));
      plan_.algorithm_ = choice.algo;
      plan_.workspace_bytes_ = static_cast<int64_t>(choice.workspaceSize);
      plan_.implementation_ =
          "cublaslt " + std::string(words(spec_.arithmetic)) + std::string(words(spec_.epilogue)) + algorithm;
      return {};
    }
    return fail(ErrorCode::Unsupported, describe(spec_) + ": cuBLASLt " +
                                            std::to_string(cublasLtGetVersion()) +
                                            " has no deterministic algorithm for it on this card");
  }

  // The preferences, once more, of what was really offered.
  Result<bool> check(const cublasLtMatmulHeuristicResult_t& choice) const {
    if (choice.workspaceSize > static_cast<uint64_t>(options_.workspace_bytes_max)) return false;
    WEFT_TRY(const auto splits, config<int32_t>(choice.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    WEFT_TRY(const auto scheme, config<uint32_t>(choice.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME));
    if (splits != 1 && (scheme & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) return false;
    if (spec_.arithmetic != Arithmetic::F32) return true;
    uint64_t flags = 0;
    size_t written = 0;
    WEFT_TRY_STATUS(
        cublas_status(cublasLtMatmulAlgoCapGetAttribute(&choice.algo, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS,
                                                        &flags, sizeof(flags), &written),
                      "the numbers of an algorithm"));
    return (flags & CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK) == 0;
  }

  cublasLtHandle_t handle_;
  const ProductSpec& spec_;
  const ProductOptions& options_;
  CublasObject<cublasLtMatmulPreference_t> preference_;
  ProductPlan plan_;
};

Result<ProductPlan> make_product_plan(cublasLtHandle_t handle, const ProductSpec& spec,
                                      const ProductOptions& options) {
  WEFT_TRY_STATUS(check(spec));
  return ProductPlanner(handle, spec, options).make();
}

Status ProductPlan::run(cublasLtHandle_t handle, cudaStream_t stream, const void* a, const void* b,
                        const void* bias, void* c, void* workspace) {
  if (has_bias_) WEFT_TRY_STATUS(set(product_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias));
  const float alpha = 1, beta = 0;
  return cublas_status(
      cublasLtMatmul(handle, product_.get(), &alpha, b, b_.get(), a, a_.get(), &beta, c, c_.get(), c,
                     c_.get(), &algorithm_, workspace, static_cast<size_t>(workspace_bytes_), stream),
      implementation_);
}

}  // namespace weft::peer::cuda
