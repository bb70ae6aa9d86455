// Internal to dag/onnx: what is asked of a node of a file before anything is lowered.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "dag/onnx/schema.h"
#include "dag/tensor.h"

namespace weft::onnx {

// Of ONNX's own operators.
inline bool is_standard(const pb::NodeProto& node) {
  return node.domain().empty() || node.domain() == "ai.onnx";
}
// False for nullptr.
inline bool is_op(const pb::NodeProto* node, std::string_view op_type) {
  return node != nullptr && is_standard(*node) && node->op_type() == op_type;
}

// A shape, or another list of at most 64 integers; nothing for other tensors.
std::optional<std::vector<int64_t>> small_ints(const dag::Tensor& tensor);
// What a Constant node returns, where it is such a list.
std::optional<std::vector<int64_t>> small_ints_of_constant(const pb::NodeProto& node);

}  // namespace weft::onnx
