// weft_gpu_properties.so: asks cuDNN for the properties of a GPU.
#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <cstdio>

#include "peer/backend/cuda/cudnn_convolution.h"

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

}  // namespace

extern "C" __attribute__((visibility("default"))) int weft_gpu_properties(int device, char* text, int size) {
  const auto properties = properties_of(device);
  std::snprintf(text, static_cast<size_t>(size), "%s",
                properties ? properties->c_str() : properties.error().message.c_str());
  return properties ? 0 : 1;
}
