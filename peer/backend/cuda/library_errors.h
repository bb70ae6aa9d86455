// What cuDNN and cuBLASLt answer, as errors of ours with their own words.
#pragma once

#include <cublasLt.h>
#include <cudnn.h>

#include <array>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::peer::cuda {

// cuDNN numbers its answers by kind, a thousand a kind.
inline ErrorCode code_of(cudnnStatus_t status) {
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)
    return ErrorCode::ResourceExhausted;
  switch (static_cast<int>(status) / 1000) {
    case 3:
      return ErrorCode::Unsupported;
    case 5:
      return ErrorCode::DeviceLost;
    default:
      return ErrorCode::Internal;
  }
}

// `what` was being done: "a convolution's plan".
inline Status cudnn_status(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  std::string message = "cuDNN, " + std::string(what) + ": " + cudnnGetErrorString(status);
  std::array<char, 1024> words{};
  cudnnGetLastErrorString(words.data(), words.size());
  words.back() = 0;
  if (words.front() != 0) message += std::string(" (") + words.data() + ")";
  return fail(code_of(status), std::move(message));
}

inline ErrorCode code_of(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED:
      return ErrorCode::ResourceExhausted;
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      return ErrorCode::Unsupported;
    case CUBLAS_STATUS_EXECUTION_FAILED:
    case CUBLAS_STATUS_MAPPING_ERROR:
      return ErrorCode::DeviceLost;
    case CUBLAS_STATUS_SUCCESS:
    case CUBLAS_STATUS_NOT_INITIALIZED:
    case CUBLAS_STATUS_INVALID_VALUE:
    case CUBLAS_STATUS_INTERNAL_ERROR:
    case CUBLAS_STATUS_LICENSE_ERROR:
      return ErrorCode::Internal;
  }
  return ErrorCode::Internal;
}

inline Status cublas_status(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return fail(code_of(status), "cuBLASLt, " + std::string(what) + ": " + cublasLtGetStatusName(status) +
                                   " (" + cublasLtGetStatusString(status) + ")");
}

}  // namespace weft::peer::cuda
