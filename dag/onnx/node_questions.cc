#include "dag/onnx/node_questions.h"

#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {

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
