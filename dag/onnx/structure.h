// Internal to dag/onnx: what an OnnxModel holds.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "dag/onnx/model.h"
#include "dag/onnx/schema.h"

namespace weft::onnx {

struct OnnxModel::Structure {
  pb::ModelProto proto;  // raw data of what weights hold is taken out
  dag::Weights weights;
  // For each initializer of proto.graph(), how the file stores it.
  enum class Form { Raw, Typed, External };
  std::vector<Form> forms;
  // Float tensors of the graph's own Constant nodes, by the name of what the node returns: they are in
  // `weights` too, for an exporter may write what is trained so.
  std::map<std::string, Form> constants;
  int64_t opset = 0;
  // What weights hold was not read, but for numbers that may say a shape.
  bool is_outline = false;
};

}  // namespace weft::onnx
