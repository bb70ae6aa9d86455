// Internal to dag/onnx: which weights a node reads in fewer bits.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "dag/onnx/schema.h"
#include "dag/onnx/stored_weights.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// Of initializers by their names: the spec of what the model holds.
using HeldSpecs = std::map<std::string, dag::TensorSpec, std::less<>>;
HeldSpecs held_specs(const OnnxModel::Structure& model);

// What the node reads in such a form; nothing for every other node, and for those whose operands are not
// initializers, or lie otherwise.
std::optional<StoredWeight> stored_weight_of(const OnnxModel::Structure& model, const HeldSpecs& held,
                                             const pb::NodeProto& node);
}  // namespace weft::onnx
