// Which node made probabilities of a value: for a loss that makes its own.
#pragma once

#include <optional>
#include <string>

#include "dag/onnx/model.h"

namespace weft::onnx {

struct Activation {
  std::string op_type;    // Softmax, LogSoftmax or Sigmoid
  std::string node;       // its name, or what it returns where it has none
  std::string value;      // what it reads: the logits
  bool reshaped = false;  // something between it and the value changes the shape
};

// Of a value of the graph: the activation that it is the result of, Identity, Cast, Reshape, Flatten,
// Squeeze, Unsqueeze and Transpose in between apart. Nothing where it is another's, or the graph is not
// well-formed.
std::optional<Activation> activation_in_front(const OnnxModel& model, const std::string& value);

}  // namespace weft::onnx
