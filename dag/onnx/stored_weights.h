// Matrices of weights that a file keeps in fewer bits than they are computed in, as operators say it:
// DequantizeLinear of ONNX, MatMulNBits and GatherBlockQuantized of com.microsoft, and the Casts that
// fewer_bits.h writes. Each is a weight of the model by a name of its own, whose numbers nobody trains.
#pragma once

#include <map>
#include <optional>
#include <set>
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

using StoredWeights = std::map<std::string, StoredWeight, std::less<>>;  // by name

// All of a model. Where nodes make different ones of numbers that would give them one name it is the first's.
StoredWeights stored_weights(const OnnxModel& model);
// Whether it is there with the same numbers, however it is used.
bool is_one_of(const StoredWeights& weights, const StoredWeight& weight);

// These weights as F32, of the model's tensors: one is made at a time, in parts.
TrainedTensors widened(const OnnxModel& model);

// By weight: whether products read the matrix as [in, out], not [out, in]. As MatMul and Gemm have it, behind
// Transposes too, and MatMulNBits. Those that no node multiplies with, or some each way, are left out.
std::map<std::string, bool> inputs_first(const OnnxModel& model);

// Matrices whose rows are the columns that they had before somebody kept them in fewer bits: what is known of
// them by name elsewhere lies the other way round. write_in_fewer_bits() says so in the file.
std::set<std::string> exchanged_weights(const OnnxModel& model);

// What an initializer is called that has a weight's numbers in half precision, where a Cast behind it has the
// weight's own name.
std::string name_of_half(const std::string& weight, dag::DType half);

// The model with the weights of those names as initializers of those dtypes, whose values are still to be
// given, in place of what it has now. A weight that is computed with as F32 may be a half, by the name above;
// others have the dtype that they have. InvalidArgument where that name is taken, or for another dtype.
Result<OnnxModel> with_whole_weights(const OnnxModel& model, const std::map<std::string, dag::DType>& dtypes);

}  // namespace weft::onnx
