// Internal to dag/onnx.
#pragma once

#include "base/result.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

// The same model in inference mode: its graph, the subgraphs of its nodes, its functions. Unsupported when an
// output of the model, or a value that something reads, exists in training mode only.
Status to_inference_mode(int64_t opset, pb::ModelProto& model);

}  // namespace weft::onnx
