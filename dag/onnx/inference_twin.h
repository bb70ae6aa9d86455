// Internal to dag/onnx.
#pragma once

#include "base/result.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

// The same graph in inference mode. Unsupported when an output of the graph exists in training mode only.
Status to_inference_mode(int64_t opset, pb::GraphProto& graph);

}  // namespace weft::onnx
