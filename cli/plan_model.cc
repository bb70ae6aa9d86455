#include "cli/plan_model.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "dag/onnx/external.h"
#include "dag/onnx/scan.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::cli {
namespace {
namespace pb = onnx::pb;

constexpr int64_t kShapeElementsMax = 64;                // of a tensor that may say a shape
constexpr int64_t kWeightBytesMax = int64_t{512} << 30;  // looked at as zeros: a minute of it
constexpr const char* kNotRead = "weights are not read";

bool may_say_shape(const dag::TensorSpec& spec) {
  return spec.rank() <= 1 && spec.element_count() <= kShapeElementsMax;
}

bool is_outside(const pb::TensorProto& proto) {
  return proto.data_location() == pb::TensorProto::EXTERNAL || proto.external_data_size() > 0;
}

// Zeros for tensors of up to so many bytes, shared by all of them. Pages that nobody writes are the system's
// one page of zeros.
Result<std::shared_ptr<std::byte[]>> make_zeros(int64_t bytes) {
  auto* memory = static_cast<std::byte*>(std::calloc(static_cast<size_t>(std::max<int64_t>(bytes, 1)), 1));
  if (memory == nullptr)
    return fail(ErrorCode::ResourceExhausted,
                "the largest weight claims " + std::to_string(bytes) + " bytes, more than can be had");
  return std::shared_ptr<std::byte[]>(memory, [](std::byte* at) { std::free(at); });
}

std::string entry_of(const pb::TensorProto& proto, std::string_view key) {
  for (const auto& entry : proto.external_data())
    if (entry.key() == key) return entry.value();
  return {};
}

Result<dag::Tensor> read_outside(const pb::TensorProto& proto, const dag::TensorSpec& spec,
                                 const std::filesystem::path& folder) {
  const std::string text = entry_of(proto, "offset");
  int64_t offset = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), offset);
  if (!text.empty() && (error != std::errc() || end != text.data() + text.size() || offset < 0))
    return fail(ErrorCode::Corrupted, "external data has the offset '" + text.substr(0, 64) + "'");
  WEFT_TRY(const onnx::File file, onnx::open_beneath(folder, entry_of(proto, "location")));
  dag::Tensor tensor(spec);
  WEFT_TRY_STATUS(file.read_at(offset, tensor.mutable_bytes()));
  return tensor;
}

class Outline {
 public:
  Outline(onnx::OnnxModel::Structure& model, std::filesystem::path folder)
      : model_(model), folder_(std::move(folder)) {}

  Status take_weights() {
    auto& initializers = *model_.proto.mutable_graph()->mutable_initializer();
    WEFT_TRY_STATUS(check_claims());
    for (auto& proto : initializers) {
      auto tensor = weight(proto);
      if (!tensor) return fail(tensor.error().within("initializer '" + proto.name().substr(0, 128) + "'"));
      model_.forms.push_back(onnx::OnnxModel::Structure::Form::External);
      proto.clear_raw_data();
      if (!model_.weights.emplace(proto.name(), std::move(*tensor)).second)
        return fail(ErrorCode::Corrupted, "two initializers have the name '" + proto.name() + "'");
    }
    return {};
  }

 private:
  Status check_claims() {
    int64_t total = 0, largest = 0;
    for (const auto& proto : model_.proto.graph().initializer()) {
      if (proto.name().empty()) return fail(ErrorCode::Corrupted, "an initializer has no name");
      if (static_cast<int64_t>(proto.name().size()) > limits_.name_bytes_max)
        return fail(ErrorCode::OutOfRange, "the name of an initializer is too long");
      WEFT_TRY(const dag::TensorSpec spec, onnx::tensor_spec(proto, limits_));
      total += spec.bytes().value;
      largest = std::max(largest, spec.bytes().value);
      if (total > kWeightBytesMax)
        return fail(ErrorCode::ResourceExhausted,
                    "the initializers claim more than " + std::to_string(kWeightBytesMax >> 30) + " GiB");
    }
    WEFT_TRY(zeros_, make_zeros(largest));
    return {};
  }

  Result<dag::Tensor> weight(const pb::TensorProto& proto) const {
    WEFT_TRY(const dag::TensorSpec spec, onnx::tensor_spec(proto, limits_));
    const dag::Tensor zeros(spec, zeros_);
    if (!is_outside(proto))
      return is_float(spec.dtype) && !may_say_shape(spec) ? zeros : onnx::tensor_from_proto(proto, limits_);
    if (!may_say_shape(spec)) return zeros;
    auto read = read_outside(proto, spec, folder_);
    if (read) return read;
    if (read.error().code != ErrorCode::NotFound) return fail(read.error());
    if (is_float(spec.dtype)) return zeros;
    return fail(ErrorCode::NotFound, to_string(spec) + " may say a shape, and its bytes are not there (" +
                                         read.error().message + "): " + kNotRead +
                                         ", but such numbers must be; keep them in the model's own file");
  }

  onnx::OnnxModel::Structure& model_;
  std::filesystem::path folder_;
  onnx::ImportLimits limits_;
  std::shared_ptr<std::byte[]> zeros_;
};

Result<int64_t> standard_opset(const pb::ModelProto& proto) {
  int64_t version = 0;
  for (const auto& entry : proto.opset_import()) {
    if (!entry.domain().empty() && entry.domain() != "ai.onnx") continue;
    if (version != 0) return fail(ErrorCode::Corrupted, "the standard operator set is imported twice");
    version = entry.version();
    if (version <= 0)
      return fail(ErrorCode::Corrupted, "operator set " + std::to_string(version) + " does not exist");
  }
  return version;
}

Result<onnx::OnnxModel> parse(std::span<const std::byte> bytes, const std::filesystem::path& path) {
  WEFT_TRY_STATUS(onnx::scan_model(bytes, onnx::ImportLimits{}));
  auto model = std::make_shared<onnx::OnnxModel::Structure>();
  if (!model->proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(ErrorCode::Corrupted, "not an ONNX model: protobuf cannot parse it");
  if (!model->proto.has_graph()) return fail(ErrorCode::Corrupted, "not an ONNX model: it has no graph");
  if (model->proto.graph().sparse_initializer_size() > 0)
    return fail(ErrorCode::Unsupported, "the model has sparse initializers; export it with dense ones");
  WEFT_TRY(model->opset, standard_opset(model->proto));
  WEFT_TRY_STATUS(Outline(*model, path.parent_path()).take_weights());
  return onnx::OnnxModel(std::move(model));
}

}  // namespace

Result<onnx::OnnxModel> read_outline(const std::filesystem::path& path) {
  WEFT_TRY(const onnx::File file, onnx::open_file(path));
  const auto within = [&](Error error) { return fail(error.within(path.string())); };
  // Before memory is taken for a file of any size.
  const auto counts = onnx::scan_model(
      file.size(), [&](int64_t offset, std::span<std::byte> out) { return file.read_at(offset, out); },
      onnx::ImportLimits{});
  if (!counts) return within(counts.error());
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  if (auto read = file.read_at(0, bytes); !read) return within(read.error());
  auto model = parse(bytes, path);
  if (!model) return within(model.error());
  return model;
}

}  // namespace weft::cli
