// Internal to dag/onnx: tensors that several nodes together tell to be numbers of a formula, where each node
// alone might as well read a weight.
#pragma once

#include <string>
#include <unordered_map>

#include "dag/onnx/expand.h"
#include "dag/onnx/schema.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

struct NumberPatterns {
  // By the tensor's name, the node that multiplies with it.
  //
  // Cosines and sines of a rotation of pairs, as rotary position embeddings have it, either
  //   x * c + Concat(-x[d/2:], x[:d/2]) * s    or    (a * c - b * s, a * s + b * c);
  // the first also with x[1::2] and x[::2], whose Concat is then reshaped. c and s may be gathered by
  // position from the tensor.
  std::unordered_map<std::string, const pb::NodeProto*> angles;
  // Factors of a value that has length 1 wherever the factor is longer, by what made the value: ones among
  // them repeat it. What the factors hold is for the caller to look at.
  std::unordered_map<std::string, const pb::NodeProto*> repeats;
};

// In time and memory linear in the nodes.
NumberPatterns find_number_patterns(const OnnxModel::Structure& model, const ExpandedGraph& graph);

}  // namespace weft::onnx
