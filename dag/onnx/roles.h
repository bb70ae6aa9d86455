// What is trained of a model, and what the other numbers of its file are. It is told by what reads a tensor:
// an operand that is a weight is a parameter whatever its size, value or name, and one that is an attribute
// in other operator sets is none. Values are looked at last, and only where nothing else tells.
//
// It is decided once, by whoever has the values, as a table of rows that may then travel with the model.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "dag/onnx/model.h"
#include "dag/onnx/value_traits.h"
#include "dag/tensor_role.h"

namespace weft::onnx {

using dag::RoleReason;
using dag::TensorRole;

struct TensorRow {
  std::string name;  // of the initializer, or of what a Constant node returns
  TensorRole role = TensorRole::Trained;
  RoleReason reason = RoleReason::Free;
  std::string node = {};  // the reader that decided, as "Pow '/pow'"; empty where none did
  int axis = -1;          // of RoleReason::ConstantAxis
  bool frozen = false;    // a pattern of `freeze` names it: a Statistic then does not move
  bool constant_node = false;
  int readers = 0;        // nodes that read it and let a gradient through, counted to 64
  bool looked_at = true;  // false: its values might have told more, and nobody had them
  bool operator==(const TensorRow&) const = default;
};

// A row for each float initializer in the file's order, then for each float tensor of a Constant node of the
// graph (not of its subgraphs and functions).
using RoleTable = std::vector<TensorRow>;

struct RoleOptions {
  std::vector<std::string> train = {};   // patterns; see judge_roles
  std::vector<std::string> freeze = {};  // patterns
  std::vector<std::string> spare = {};   // patterns: what `freeze` leaves alone
  std::vector<std::string> read = {};    // values that a loss reads beside the outputs of the model
};

// The traits of a tensor's values; nothing where nobody has them.
using LookAtValues = std::function<std::optional<ValueTraits>(const std::string& name)>;
// Of the weights that the model holds, and of those whose traits it was given.
LookAtValues look_at(const OnnxModel& model);
// The same model, with the traits of weights that it does not hold, by name.
OnnxModel with_traits(const OnnxModel& model, std::map<std::string, ValueTraits> traits);
// Where the first NaN of such a weight is; nothing where it has none, or nobody looked.
std::optional<int64_t> nan_of_unread(const OnnxModel& model, std::string_view name);

// Only names, shapes and the graph are taken from the model; values are asked for of few tensors.
//
// `train` that names nothing but constants adds them to what is trained anyway. As soon as it names a tensor
// that is trained without it, it names all that is trained. `freeze` takes away from either, but for what
// `spare` names. Errors: NotFound for a pattern that matches nothing; InvalidArgument for one of `train` that
// matches nothing that can be trained; what import_model says of a graph that is not well-formed.
Result<RoleTable> judge_roles(const OnnxModel& model, const RoleOptions& options, const LookAtValues& look);

// InvalidArgument, by name, for a table that is not of this model: a row that names no float tensor, or one
// that another names already; a tensor without a row.
Status check_roles(const OnnxModel& model, const RoleTable& table);

// The same model, of which that is decided: whoever imports it goes by the table. An import refuses one that
// check_roles does, or that is at odds with the graph about which tensors are statistics.
OnnxModel with_roles(const OnnxModel& model, RoleTable table);
const RoleTable* roles_of(const OnnxModel& model);  // nullptr: nothing was decided

// Why it is no parameter, in words: "the exponent of Pow '/pow'". Empty for what is trained.
std::string why(const TensorRow& row);
std::string_view to_string(TensorRole role);

// What a user should know before training and need not mend, a line each: what is constant and how to train
// it, factors that may be learnt, frozen layers whose statistics move.
std::vector<std::string> role_notes(const OnnxModel& model, const RoleTable& table);
// What may be a mistake: a weight that was written twice, one that looks like a table, statistics that stay
// fixed. `look` is asked for every trained tensor of more than one axis.
std::vector<std::string> role_warnings(const OnnxModel& model, const RoleTable& table,
                                       const LookAtValues& look);

// NotFound, with names that are near, for the first of the patterns that matches no tensor.
Status check_train(const OnnxModel& model, std::span<const std::string> patterns);

}  // namespace weft::onnx
