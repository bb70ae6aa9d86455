// Internal to dag/onnx: what an OnnxModel holds.
#pragma once

#include <filesystem>
#include <vector>

#include "dag/onnx/model.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

struct OnnxModel::Structure {
  pb::ModelProto proto;  // raw data of initializers is taken out: weights hold it
  dag::Weights weights;
  // For each initializer of proto.graph(), how the file stores it.
  enum class Form { Raw, Typed, External };
  std::vector<Form> forms;
  int64_t opset = 0;
  // What weights hold was not read, but for numbers that may say a shape.
  bool is_outline = false;
};

}  // namespace weft::onnx
