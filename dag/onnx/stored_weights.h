// Matrices of weights that a file keeps in fewer bits than they are computed in, as operators say it:
// DequantizeLinear of ONNX, MatMulNBits and GatherBlockQuantized of com.microsoft, and the Casts that
// fewer_bits.h writes. Each is a weight of the model by a name of its own, whose numbers nobody trains.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "dag/onnx/export.h"
#include "dag/onnx/model.h"
#include "dag/passes/store.h"

namespace weft::onnx {

struct StoredWeight {
  // How a node reads it: as the operator's result, as the second factor with its rows and columns exchanged,
  // or as the table whose rows the second operand names.
  enum class Use : uint8_t { Result, Factor, Table };
  std::string name;
  dag::DType dtype = dag::DType::F32;  // of its numbers
  Use use = Use::Result;
  dag::StoredForm form;
};

// All of a model, by name.
std::map<std::string, StoredWeight, std::less<>> stored_weights(const OnnxModel& model);

// These weights as F32, of the model's tensors: one is made at a time, in parts.
TrainedTensors widened(const OnnxModel& model);

// The model with the weights of those names as initializers of their own dtype, whose values are still to be
// given, in place of what it keeps them in; other names are left out.
Result<OnnxModel> with_whole_weights(const OnnxModel& model, const std::vector<std::string>& names);

}  // namespace weft::onnx
