// What the sources of operator_cases.h share.
#pragma once

#include <string_view>
#include <vector>

#include "dag/onnx/schema.h"
#include "dag/tensor.h"

namespace weft::onnx::testing {

// A line for each case of one node.
std::string_view operator_lines();

// The type, shape and values; its name stays.
void set_tensor(pb::TensorProto& proto, const dag::TensorSpec& spec, const std::vector<double>& values);

}  // namespace weft::onnx::testing
