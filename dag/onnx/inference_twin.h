// Internal to dag/onnx.
#pragma once

#include <set>
#include <string>

#include "base/result.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

// The same model in inference mode: its graph, the subgraphs of its nodes, its functions. What returns
// `instance_norms` (find_instance_norms) goes on normalising by each sample's own statistics. Unsupported
// when an output of the model, or a value that something reads, exists in training mode only.
Status to_inference_mode(int64_t opset, const std::set<std::string>& instance_norms, pb::ModelProto& model);

}  // namespace weft::onnx
