// weft_gpu_properties.so: asks cuDNN for the properties of a GPU, and for what its convolutions take.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdio>

#include "peer/backend/cuda/cudnn_convolution.h"
#include "tests/gpu/convolution_survey.h"

namespace {

weft::Result<std::string> properties_of(int device) {
  using weft::ErrorCode;
  if (const cudaError_t set = cudaSetDevice(device); set != cudaSuccess)
    return weft::fail(ErrorCode::Unsupported, cudaGetErrorString(set));
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t created = cudnnCreate(&handle); created != CUDNN_STATUS_SUCCESS)
    return weft::fail(ErrorCode::Unsupported, cudnnGetErrorString(created));
  WEFT_TRY(const auto target, weft::peer::cuda::CudnnTarget::of_device(handle));
  return target.properties();  // the handle lives as long as the program: it ends now
}

int answer(const weft::Result<std::string>& found, char* text, int size) {
  std::snprintf(text, static_cast<size_t>(size), "%s",
                found ? found->c_str() : found.error().message.c_str());
  return found ? 0 : 1;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int weft_gpu_properties(int device, char* text, int size) {
  return answer(properties_of(device), text, size);
}

extern "C" __attribute__((visibility("default"))) int weft_gpu_convolutions(int device, char* text,
                                                                            int size) {
  constexpr int kBatch = 64;
  return answer(weft::test::survey_convolutions(device, kBatch), text, size);
}
