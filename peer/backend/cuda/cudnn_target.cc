#include <algorithm>
#include <charconv>
#include <string>

#include "peer/backend/cuda/cudnn_convolution.h"

namespace weft::peer::cuda {
namespace {

// What may follow "key": in a flat JSON object, up to the next comma or brace; without quotes.
std::string json_value(std::string_view json, std::string_view key) {
  const size_t at = json.find("\"" + std::string(key) + "\"");
  if (at == std::string_view::npos) return {};
  const size_t begin = json.find_first_not_of(" \t\r\n:", at + key.size() + 2);
  if (begin == std::string_view::npos) return {};
  if (json[begin] == '"') return std::string(json.substr(begin + 1, json.find('"', begin + 1) - begin - 1));
  return std::string(json.substr(begin, json.find_first_of(",} \t\r\n", begin) - begin));
}

}  // namespace

Result<CudnnTarget> CudnnTarget::of_device(cudnnHandle_t handle) {
  CudnnTarget target;
  target.handle_ = handle;
  WEFT_TRY(auto descriptor, make_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  WEFT_TRY_STATUS(set<CUDNN_TYPE_HANDLE>(descriptor, CUDNN_ATTR_DEVICEPROP_HANDLE, handle));
  WEFT_TRY_STATUS(finalize(descriptor, "the device's properties"));
  target.descriptor_ = std::move(descriptor);
  WEFT_TRY_STATUS(target.read_properties());
  return target;
}

Result<CudnnTarget> CudnnTarget::of_properties(std::string_view json) {
  CudnnTarget target;
  WEFT_TRY(auto descriptor, make_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  const auto given = [&]() -> Status {
    WEFT_TRY_STATUS(set<CUDNN_TYPE_CHAR>(descriptor, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                         std::span<const char>(json)));
    return finalize(descriptor, "the properties of a device");
  }();
  if (!given) return fail(ErrorCode::InvalidArgument, given.error().message);
  target.descriptor_ = std::move(descriptor);
  WEFT_TRY_STATUS(target.read_properties());
  return target;
}

Status CudnnTarget::read_properties() {
  properties_.assign(16384, '\0');
  int64_t size = 0;
  WEFT_TRY_STATUS(cudnn_status(
      cudnnBackendGetAttribute(descriptor_.get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                               static_cast<int64_t>(properties_.size()), &size, properties_.data()),
      "the device's properties"));
  properties_.resize(std::min(properties_.find('\0'), properties_.size()));
  name_ = json_value(properties_, "deviceName");
  const std::string version = json_value(properties_, "deviceVer");  // 860 for 8.6
  int number = 0;
  std::from_chars(version.data(), version.data() + version.size(), number);
  compute_capability_ = number / 10;
  if (name_.empty() || compute_capability_ == 0)
    return fail(ErrorCode::Internal,
                "cuDNN's properties of the device have no name or version: " + properties_);
  return {};
}

std::string CudnnTarget::to_string() const {
  return "sm_" + std::to_string(compute_capability_) + " (" + name_ + ")";
}

}  // namespace weft::peer::cuda
