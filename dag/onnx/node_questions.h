// Internal to dag/onnx: what is asked of a node of a file before anything is lowered.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
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

// nullptr: there is none of that name.
const pb::AttributeProto* find_attribute(const pb::NodeProto& node, std::string_view name);
// An attribute as it stands, of whatever type.
int64_t int_of(const pb::NodeProto& node, std::string_view name, int64_t otherwise);

// Names that the node reads, those that its bodies do among them: these may be the graph's.
void add_names_read(const pb::NodeProto& node, std::set<std::string>& names);
void add_names_read(const pb::GraphProto& graph, std::set<std::string>& names);  // what it returns, too

// A shape, or another list of at most 64 integers; nothing for other tensors.
std::optional<std::vector<int64_t>> small_ints(const dag::Tensor& tensor);
// What a Constant node returns, where it is such a list.
std::optional<std::vector<int64_t>> small_ints_of_constant(const pb::NodeProto& node);

}  // namespace weft::onnx
