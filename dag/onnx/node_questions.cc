#include "dag/onnx/node_questions.h"

#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {

const pb::AttributeProto* find_attribute(const pb::NodeProto& node, std::string_view name) {
  for (const auto& attribute : node.attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}

int64_t int_of(const pb::NodeProto& node, std::string_view name, int64_t otherwise) {
  const auto* attribute = find_attribute(node, name);
  return attribute != nullptr ? attribute->i() : otherwise;
}

void add_names_read(const pb::NodeProto& node, std::set<std::string>& names) {
  names.insert(node.input().begin(), node.input().end());
  for (const auto& attribute : node.attribute()) {
    if (attribute.has_g()) add_names_read(attribute.g(), names);
    for (const auto& graph : attribute.graphs()) add_names_read(graph, names);
  }
}

void add_names_read(const pb::GraphProto& graph, std::set<std::string>& names) {
  for (const auto& node : graph.node()) add_names_read(node, names);
  for (const auto& output : graph.output()) names.insert(output.name());
}

std::optional<std::vector<int64_t>> small_ints(const dag::Tensor& tensor) {
  constexpr int64_t kCountMax = 64;
  if (!is_integer(tensor.dtype()) || tensor.element_count() > kCountMax) return std::nullopt;
  return to_int64s(tensor);
}

std::optional<std::vector<int64_t>> small_ints_of_constant(const pb::NodeProto& node) {
  for (const auto& attribute : node.attribute()) {
    if (attribute.name() == "value_int") return std::vector<int64_t>{attribute.i()};
    if (attribute.name() == "value_ints")
      return std::vector<int64_t>(attribute.ints().begin(), attribute.ints().end());
    if (attribute.name() != "value" || !attribute.has_t()) continue;
    const auto tensor = tensor_from_proto(attribute.t(), ImportLimits{});
    return tensor ? small_ints(*tensor) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace weft::onnx
