#include "dag/onnx/model.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "dag/onnx/parse.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using Form = OnnxModel::Structure::Form;

// A model in memory, with nothing beside it.
class InMemory final : public ModelFiles, public RandomAccess {
 public:
  explicit InMemory(std::span<const std::byte> bytes) : bytes_(bytes) {}

  Result<std::shared_ptr<const RandomAccess>> open_model() override {
    return std::shared_ptr<const RandomAccess>(std::shared_ptr<void>(), this);
  }
  Result<std::shared_ptr<const RandomAccess>> open_beside(const std::string&) override {
    return fail(
        ErrorCode::PermissionDenied,
        "keeps its data in another file; a model that did not come from a path must hold its own data");
  }
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  Status read_at(int64_t offset, std::span<std::byte> target) const override {
    if (!target.empty()) std::memcpy(target.data(), bytes_.data() + offset, target.size());
    return {};
  }

 private:
  std::span<const std::byte> bytes_;
};

std::string dim_text(const pb::TensorShapeProto::Dimension& dim) {
  if (is_known(dim)) return std::to_string(dim.dim_value());
  if (dim.has_dim_param() && !dim.dim_param().empty()) return dim.dim_param();
  return "?";
}

OnnxModel::Port port_of(const pb::ValueInfoProto& info) {
  OnnxModel::Port port;
  port.name = info.name();
  const auto& type = info.type();
  if (!type.has_tensor_type()) {
    port.dtype = type.has_sequence_type()   ? "sequence"
                 : type.has_map_type()      ? "map"
                 : type.has_optional_type() ? "optional"
                                            : "unknown";
    return port;
  }
  const auto dtype = dtype_from_onnx(type.tensor_type().elem_type());
  port.dtype = dtype ? std::string(to_string(*dtype)) : "unknown";
  port.has_shape = type.tensor_type().has_shape();
  for (const auto& dim : type.tensor_type().shape().dim()) port.dims.push_back(dim_text(dim));
  return port;
}

}  // namespace

const dag::Weights& OnnxModel::weights() const { return structure_->weights; }
int64_t OnnxModel::opset() const { return structure_->opset; }
std::string OnnxModel::producer() const {
  const auto& proto = structure_->proto;
  return proto.producer_name() + (proto.producer_version().empty() ? "" : " " + proto.producer_version());
}
bool OnnxModel::has_external_data() const {
  for (const auto form : structure_->forms)
    if (form == Form::External) return true;
  return false;
}

std::vector<OnnxModel::Port> OnnxModel::inputs() const {
  std::vector<Port> ports;
  for (const auto& info : structure_->proto.graph().input())
    if (!structure_->weights.contains(info.name())) ports.push_back(port_of(info));
  return ports;
}
std::vector<OnnxModel::Port> OnnxModel::outputs() const {
  std::vector<Port> ports;
  for (const auto& info : structure_->proto.graph().output()) ports.push_back(port_of(info));
  return ports;
}

OnnxModel OnnxModel::with(Learnt learnt) const {
  return OnnxModel(structure_, std::make_shared<const Learnt>(std::move(learnt)));
}

OnnxModel OnnxModel::with_weights(dag::Weights values) const {
  auto structure = std::make_shared<Structure>(*structure_);
  for (auto& [name, value] : values) {
    dag::Tensor& weight = structure->weights.at(name);
    WEFT_CHECK(weight.spec() == value.spec());
    weight = std::move(value);
    structure->unread.erase(name);
  }
  return OnnxModel(std::move(structure));
}

bool OnnxModel::is_read(std::string_view initializer) const {
  return !structure_->unread.contains(initializer);
}

std::optional<OnnxModel::Place> OnnxModel::place_of(std::string_view initializer) const {
  const auto at = structure_->unread.find(initializer);
  if (at == structure_->unread.end() || !at->second.file) return std::nullopt;
  const dag::Tensor& weight = structure_->weights.find(initializer)->second;
  return Place{at->second.location, at->second.offset, weight.spec().bytes().value};
}

Status OnnxModel::read_weight(std::string_view initializer,
                              const std::function<Status(std::span<const std::byte>)>& visit) const {
  const dag::Tensor& weight = structure_->weights.find(initializer)->second;
  const auto at = structure_->unread.find(initializer);
  if (at == structure_->unread.end()) return visit(weight.bytes());
  const Structure::Place& place = at->second;
  if (!place.file)
    return fail(ErrorCode::NotFound,
                "the bytes of initializer '" + std::string(initializer.substr(0, 128)) + "' are not there");
  return read_in_pieces(*place.file, place.offset, weight.spec().bytes().value, visit);
}

Result<dag::Tensor> OnnxModel::read_whole(std::string_view initializer) const {
  const dag::Tensor& weight = structure_->weights.find(initializer)->second;
  if (is_read(initializer)) return weight;
  dag::Tensor tensor(weight.spec());
  std::span<std::byte> rest = tensor.mutable_bytes();
  WEFT_TRY_STATUS(read_weight(initializer, [&](std::span<const std::byte> bytes) -> Status {
    const size_t count = std::min(bytes.size(), rest.size());
    std::copy_n(bytes.begin(), count, rest.begin());
    rest = rest.subspan(count);
    return {};
  }));
  if (rest.empty()) return tensor;
  return fail(ErrorCode::Corrupted, "initializer '" + std::string(initializer.substr(0, 128)) + "' lacks " +
                                        std::to_string(rest.size()) + " bytes");
}

Result<OnnxModel> read_model(const std::filesystem::path& path, const ImportLimits& limits) {
  auto model = parse_model(*files_at(path), {.limits = limits});
  if (!model) return fail(model.error().within(path.string()));
  return model;
}

Result<OnnxModel> read_model(std::span<const std::byte> bytes, const ImportLimits& limits) {
  InMemory files(bytes);
  return parse_model(files, {.limits = limits});
}

}  // namespace weft::onnx
