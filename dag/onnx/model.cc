#include "dag/onnx/model.h"

#include "dag/onnx/parse.h"
#include "dag/onnx/scan.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using Form = OnnxModel::Structure::Form;

Result<OnnxModel> parse(std::span<const std::byte> bytes, const std::filesystem::path* folder,
                        const ImportLimits& limits) {
  ExternalReader external(folder, limits);
  return parse_model(bytes, limits, [&](const pb::TensorProto& proto, const dag::TensorSpec&, bool outside) {
    return outside ? external.read(proto) : tensor_from_proto(proto, limits);
  });
}

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

Result<OnnxModel> read_model(const std::filesystem::path& path, const ImportLimits& limits) {
  WEFT_TRY(const auto bytes, read_scanned(path, limits));
  const std::filesystem::path folder = path.parent_path();
  auto model = parse(bytes, &folder, limits);
  if (!model) return fail(model.error().within(path.string()));
  return model;
}

Result<OnnxModel> read_model(std::span<const std::byte> bytes, const ImportLimits& limits) {
  WEFT_TRY_STATUS(scan_model(bytes, limits));
  return parse(bytes, nullptr, limits);
}

}  // namespace weft::onnx
