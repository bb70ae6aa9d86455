// Internal to dag/onnx: what an import refuses before it lowers a node.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/expand.h"
#include "dag/onnx/structure.h"
#include "dag/tensor.h"
#include "dag/tensor_role.h"

namespace weft::onnx {

// The first element that is a NaN; nothing for what is no float. Without a copy: weights are large.
std::optional<int64_t> first_nan(const dag::Tensor& tensor);

// Of a table from somebody else: which tensors are statistics is the graph's to say. InvalidArgument.
Status check_statistics(const OnnxModel::Structure& model, const ExpandedGraph& expanded,
                        const RoleTable& table);

// Of the model, and of functions that say their own. Unsupported: an operator set that is too old. A newer
// one than those that are known is a warning.
Status check_opsets(const ExpandedGraph& expanded, std::vector<std::string>& warnings);

// Unsupported: an input or output that is no tensor.
Status check_value_types(const pb::GraphProto& graph);

}  // namespace weft::onnx
