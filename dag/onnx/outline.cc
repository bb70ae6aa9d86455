#include "dag/onnx/outline.h"

#include <sys/mman.h>

#include <algorithm>

#include "dag/onnx/parse.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using dag::Tensor;
using dag::TensorSpec;

constexpr int64_t kShapeElementsMax = 64;                // of a tensor that may say a shape
constexpr int64_t kWeightBytesMax = int64_t{512} << 30;  // all together

bool may_say_shape(const TensorSpec& spec) {
  return spec.rank() <= 1 && spec.element_count() <= kShapeElementsMax;
}

// Pages that nobody may write: the system's one page of zeros, which is no memory, however much is claimed.
Result<std::shared_ptr<std::byte[]>> map_zeros(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(ErrorCode::ResourceExhausted,
                "a weight claims " + std::to_string(bytes) + " bytes, more than can be had");
  return std::shared_ptr<std::byte[]>(static_cast<std::byte*>(memory),
                                      [size](std::byte* at) { ::munmap(at, size); });
}

class WeightOutlines {
 public:
  WeightOutlines(const std::filesystem::path& folder, const ImportLimits& limits)
      : external_(&folder, limits), limits_(limits) {}

  Result<Tensor> take(const pb::TensorProto& proto, const TensorSpec& spec, bool outside) {
    if (!may_say_shape(spec))
      return outside || is_float(spec.dtype) ? zeros(spec) : tensor_from_proto(proto, limits_);
    if (!outside) return tensor_from_proto(proto, limits_);
    auto read = external_.read(proto);
    if (read || read.error().code != ErrorCode::NotFound) return read;
    if (is_float(spec.dtype)) return zeros(spec);
    return fail(ErrorCode::NotFound,
                to_string(spec) + " may say a shape, and its bytes are not there (" + read.error().message +
                    "): weights are not read, but such numbers must be; keep them in the model's own file");
  }

 private:
  // The same memory for all that fit into it.
  Result<Tensor> zeros(const TensorSpec& spec) {
    if (!zeros_ || spec.bytes().value > zeros_bytes_) {
      WEFT_TRY(zeros_, map_zeros(spec.bytes().value));
      zeros_bytes_ = spec.bytes().value;
    }
    return Tensor(spec, zeros_);
  }

  ExternalReader external_;
  const ImportLimits& limits_;
  std::shared_ptr<std::byte[]> zeros_;
  int64_t zeros_bytes_ = 0;
};

}  // namespace

Result<OnnxModel> read_outline(const std::filesystem::path& path) {
  ImportLimits limits;
  limits.weights_bytes_max = kWeightBytesMax;
  WEFT_TRY(const auto bytes, read_scanned(path, limits));
  const std::filesystem::path folder = path.parent_path();
  WeightOutlines weights(folder, limits);
  auto model = parse_model(
      bytes, limits,
      [&](const auto& proto, const auto& spec, bool outside) { return weights.take(proto, spec, outside); },
      /*is_outline=*/true);
  if (!model) return fail(model.error().within(path.string()));
  return model;
}

}  // namespace weft::onnx
