// From ONNX to the OP-DAG. Every node is lowered to ops of weft's closed set; whatever the file lets us know
// at import (shapes, integer arithmetic, masks) is computed now and becomes a constant, or vanishes.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/glob.h"
#include "base/result.h"
#include "dag/graph.h"
#include "dag/onnx/limits.h"
#include "dag/onnx/model.h"
#include "dag/onnx/roles.h"
#include "dag/op_table.h"
#include "dag/passes/store.h"

namespace weft::onnx {

// Of the standard operators. The meaning of each is known in all of these; a newer file is taken to mean what
// it would in the newest, with a warning.
inline constexpr int64_t kOpsetMin = 6;
inline constexpr int64_t kOpsetMax = 26;

// Computes one op on host tensors: how constants are folded. An absent optional operand is nullptr. A backend
// above this layer provides it.
using Evaluator = std::function<Result<std::vector<dag::Tensor>>(
    const dag::Op& op, std::span<const dag::Tensor* const> inputs, std::span<const dag::TensorSpec> outputs)>;

struct ImportOptions {
  // REQUIRED.
  Evaluator evaluate;

  // Size of the batch: of the dims that have its symbol (dag/onnx/batch_axis.h), and of the leading dim of
  // every other input whose leading dim is symbolic or unknown. A fixed one stays what it is.
  std::optional<int64_t> batch;
  // Whether the graph's inputs and predictions have the batch for their first axis, as data has it: where its
  // symbol is on another one they are transposed, and `input_shapes` are those of the graph.
  bool batch_first = false;
  // Sizes of symbolic dims by name ("sequence").
  std::map<std::string, int64_t> sizes;
  // Whole shapes of inputs by name, before anything above.
  std::map<std::string, dag::Shape> input_shapes;
  // Inputs whose value is known: they become constants and leave the graph's inputs.
  std::map<std::string, dag::Tensor> bound_inputs;

  // true: BatchNormalization and Dropout nodes that the file marks as training compute as in training, and
  // running statistics get StateUpdate outputs. false: running statistics are used and nothing is dropped,
  // whatever the file says.
  bool training = false;
  // Compute BatchNormalization's running statistics as ONNX defines them (population variance), not as
  // PyTorch does: for ONNX's own test cases.
  bool onnx_running_statistics = false;
  // Initializers that are trained, and that are not: patterns with * and ? (judge_roles). One that matches
  // nothing is an error.
  std::vector<std::string> train, freeze;
  std::vector<std::string> spare;  // what `freeze` leaves alone
  // What was decided of the model's tensors already; `train` and `freeze` then say nothing. Otherwise the
  // import decides, by the values that the model holds.
  std::optional<RoleTable> roles;
  // Values of the graph that are predictions beside its outputs, by name. One that the graph lacks is left
  // out.
  std::vector<std::string> read;
  // Matrices that the file keeps in fewer bits (dag/onnx/stored_weights.h) are initializers of role Frozen in
  // the graph, F32 or a half like others, and ImportedModel::stored says what they are made of. Otherwise ops
  // make them of integers.
  bool keep_stored = false;
  // Outputs of the file that are none of the graph's.
  std::vector<std::string> left_out;

  ImportLimits limits;
};

struct ImportedModel {
  // Outputs of the file as OutputRole::Prediction in the file's order, then options.read, then StateUpdate
  // ones. Inputs keep
  // their names. Not yet canonicalised (dag/passes/canonicalise.h).
  dag::Graph graph;
  dag::Weights weights;  // of the graph's initializers; of those of `stored` the parts
  dag::StoredForms stored;
  RoleTable roles;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // what is worth knowing, and no reason to worry
  std::map<std::string, int64_t>
      op_counts;  // nodes by operator, calls of the file's own functions taken apart
};

// Functions of the file are put in place of their calls; If, Loop and Scan are written out where what decides
// them is known once shapes are.
//
// Errors: Unsupported, listing every operator without a lowering with its count, or naming the opset range,
// sequence types, loops that depend on data; InvalidArgument for a graph that is not well-formed (undefined
// or doubly defined values, cycles), for shapes that do not fit, for a dim that nothing binds (naming it),
// for NaN in weights; OutOfRange and ResourceExhausted for values beyond the limits; and, for training,
// Unsupported for an evaluation-mode export that ties parameters which are independent (with the export call
// to use).
Result<ImportedModel> import_model(const OnnxModel& model, const ImportOptions& options,
                                   const dag::OpTable& table);

// Names of the graph's inputs that decide shapes (operands such as Reshape's shape, Slice's starts, TopK's
// k), directly or through other nodes: they must be bound for the model to have static shapes.
std::vector<std::string> shape_inputs(const OnnxModel& model);

// NotFound, with names that are near, for the first of the patterns that matches no initializer.
Status check_freeze(const OnnxModel& model, std::span<const std::string> patterns);
// The same for patterns of targets of adapters.
Status check_targets(const OnnxModel& model, std::span<const std::string> patterns);

// Names of the operators that are imported: of ONNX's own domain ("") or another, in alphabetical order.
std::vector<std::string> imported_operators(std::string_view domain);

// Operators that are refused on purpose, names with spaces between them, and the reason.
struct RefusedOperators {
  std::string_view names;
  std::string_view reason;
};
std::span<const RefusedOperators> refused_operators();

}  // namespace weft::onnx
