// Descriptors of cuDNN's graph API, and their attributes as values. Errors are those of cudnn_status, which
// name the attribute.
#pragma once

#include <cudnn.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "peer/backend/cuda/library_errors.h"

namespace weft::peer::cuda {

// Descriptors of cuDNN's are void pointers.
struct DestroyCudnnDescriptor {
  void operator()(void* descriptor) const { cudnnBackendDestroyDescriptor(descriptor); }
};
using CudnnDescriptor = std::unique_ptr<void, DestroyCudnnDescriptor>;

inline Result<CudnnDescriptor> make_descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  WEFT_TRY_STATUS(cudnn_status(cudnnBackendCreateDescriptor(type, &descriptor), "a descriptor"));
  return CudnnDescriptor(descriptor);
}

template <cudnnBackendAttributeType_t type, typename T>
Status set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, std::span<const T> values) {
  return cudnn_status(cudnnBackendSetAttribute(descriptor.get(), name, type,
                                               static_cast<int64_t>(values.size()), values.data()),
                      "attribute " + std::to_string(static_cast<int>(name)));
}
template <cudnnBackendAttributeType_t type, typename T>
Status set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, const T& value) {
  return set<type>(descriptor, name, std::span<const T>(&value, 1));
}
inline Status set_ints(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
                       const std::vector<int64_t>& values) {
  return set<CUDNN_TYPE_INT64>(descriptor, name, std::span<const int64_t>(values));
}
inline Status set_part(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
                       cudnnBackendDescriptor_t part) {
  return set<CUDNN_TYPE_BACKEND_DESCRIPTOR>(descriptor, name, part);
}

// How many values came, at most values.size().
template <cudnnBackendAttributeType_t type, typename T>
Result<size_t> get(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, std::span<T> values) {
  int64_t count = 0;
  WEFT_TRY_STATUS(
      cudnn_status(cudnnBackendGetAttribute(descriptor.get(), name, type, static_cast<int64_t>(values.size()),
                                            &count, values.data()),
                   "attribute " + std::to_string(static_cast<int>(name))));
  return std::min(values.size(), static_cast<size_t>(std::max<int64_t>(count, 0)));
}
template <cudnnBackendAttributeType_t type, typename T>
Result<T> get_one(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name) {
  T value{};
  WEFT_TRY(const size_t count, get<type>(descriptor, name, std::span<T>(&value, 1)));
  if (count != 1)
    return fail(ErrorCode::Internal,
                "cuDNN, attribute " + std::to_string(static_cast<int>(name)) + ": empty");
  return value;
}
// Fills descriptors of the kind that the attribute holds, made beforehand, and drops the rest.
inline Result<std::vector<CudnnDescriptor>> get_parts(const CudnnDescriptor& descriptor,
                                                      cudnnBackendAttributeName_t name,
                                                      cudnnBackendDescriptorType_t kind, size_t count_max) {
  std::vector<CudnnDescriptor> parts;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (size_t i = 0; i < count_max; ++i) {
    WEFT_TRY(auto part, make_descriptor(kind));
    raw.push_back(part.get());
    parts.push_back(std::move(part));
  }
  WEFT_TRY(const size_t count, get<CUDNN_TYPE_BACKEND_DESCRIPTOR>(descriptor, name, std::span(raw)));
  parts.resize(count);
  return parts;
}

inline Status finalize(const CudnnDescriptor& descriptor, std::string_view what) {
  return cudnn_status(cudnnBackendFinalize(descriptor.get()), what);
}

}  // namespace weft::peer::cuda
