// The OP-DAG: an immutable value. Ops stand in topological order and refer to values by index; a value is one
// output of one op, and an edge is a value's use by an op. Shapes are fixed: the batch is bound at import.
// Weights travel apart from the graph (Weights, by initializer name); only small constants live inside.
//
// A graph is built by GraphBuilder alone, which infers and checks every shape, so that a Graph at hand is
// well-formed: operands precede their users, specs are those of the op table, names are unique.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/attributes.h"
#include "dag/op_kind.h"
#include "dag/tensor.h"

namespace weft::dag {

using OpId = Id<struct OpTag>;
using ValueId = Id<struct ValueTag>;
using GroupId = Id<struct GroupTag>;

// How a value's bytes lie in memory. Blocked8 and Blocked16: [N, C/b, spatial..., b], b channels innermost;
// only for rank >= 3 values whose channel count is a multiple of b.
enum class Layout : uint8_t { Plain, Blocked8, Blocked16 };
std::string_view to_string(Layout layout);

enum class Phase : uint8_t { Forward, Backward };

struct Op {
  OpKind kind = OpKind::Input;
  Attributes attributes;
  std::vector<ValueId> inputs;   // an absent optional operand is an invalid id
  std::vector<ValueId> outputs;  // every output of the op, used or not
  std::string name;              // for people: the ONNX node's name where there was one
  Phase phase = Phase::Forward;
  // The forward op on whose behalf this one exists: itself for forward ops; for backward ops the op whose vjp
  // it belongs to, or whose output's cotangent it sums. A stage that owns an op owns all ops of that origin.
  OpId origin;
  // Ops of one group run as one kernel and are never cut apart; an invalid id is a group of its own.
  GroupId group;
};

struct Value {
  TensorSpec spec;
  OpId producer;
  uint32_t output_index = 0;
  Layout layout = Layout::Plain;
  std::string name;
};

enum class InputRole : uint8_t {
  Model,  // the submitted model's own, or what another piece of the graph sends
  Loss,   // what the loss reads beside the model's outputs: targets, sample weights, divisors, the mask
};

enum class InitializerRole : uint8_t {
  Parameter,         // a float initializer that may be trained
  Frozen,            // a float initializer the job asked not to train
  RunningStatistic,  // BatchNorm's running mean or variance: changed by the forward pass, not by gradients
  Buffer,            // everything else: masks, tables, integers
};
std::string_view to_string(InitializerRole role);

struct Initializer {
  std::string name;
  ValueId value;
  InitializerRole role = InitializerRole::Buffer;
};

enum class OutputRole : uint8_t {
  Prediction,   // an output of the submitted model
  Loss,         // the scalar that is differentiated
  Correct,      // how many labels the largest logit hit (F32 scalar): for accuracy
  Counted,      // how many labels counted (F32 scalar): the weight of this microbatch in a mean over labels
  Gradient,     // name = the initializer's
  StateUpdate,  // name = the initializer's; written back once a microbatch, after Forward
  Activation,   // a value that another piece of the graph reads
  Cotangent,    // one term of the cotangent of a value that another piece made
};
std::string_view to_string(OutputRole role);

struct GraphOutput {
  std::string name;
  ValueId value;
  OutputRole role = OutputRole::Prediction;
};

class Graph {
 public:
  std::span<const Op> ops() const { return ops_; }
  std::span<const Value> values() const { return values_; }
  const Op& op(OpId id) const { return ops_[id.index]; }
  const Value& value(ValueId id) const { return values_[id.index]; }
  const TensorSpec& spec(ValueId id) const { return values_[id.index].spec; }
  const Op& producer(ValueId id) const { return ops_[values_[id.index].producer.index]; }

  std::span<const ValueId> inputs() const { return inputs_; }  // values of the Input ops, in order
  std::span<const InputRole> input_roles() const {
    return input_roles_;
  }                                           // of inputs(); planning's: not sent
  InputRole input_role(ValueId input) const;  // REQUIRES: one of inputs()
  std::span<const Initializer> initializers() const { return initializers_; }
  std::span<const GraphOutput> outputs() const { return outputs_; }
  const Tensor& constant(const Op& op) const {
    return constants_[static_cast<size_t>(op.attributes.get_int(Attr::Value))];
  }
  size_t constant_count() const { return constants_.size(); }

  const Initializer* find_initializer(std::string_view name) const;
  const GraphOutput* find_output(OutputRole role, std::string_view name = {}) const;  // first that matches

  // For each value, the ops that read it, in topological order; an op that reads it twice appears twice.
  std::vector<std::vector<OpId>> users() const;

 private:
  friend class GraphBuilder;
  std::vector<Op> ops_;
  std::vector<Value> values_;
  std::vector<ValueId> inputs_;
  std::vector<InputRole> input_roles_;
  std::vector<Initializer> initializers_;
  std::vector<GraphOutput> outputs_;
  std::vector<Tensor> constants_;
};

using Weights = std::map<std::string, Tensor, std::less<>>;

class OpTable;

// Builds a Graph op by op. Not thread-safe. After finish() it is spent.
class GraphBuilder {
 public:
  explicit GraphBuilder(const OpTable& table) : table_(&table) {}

  ValueId input(std::string name, TensorSpec spec, InputRole role = InputRole::Model);
  ValueId initializer(std::string name, TensorSpec spec, InitializerRole role);
  ValueId constant(Tensor tensor, std::string name = {});
  ValueId scalar(DType dtype, double value) { return constant(make_scalar(dtype, value)); }

  // Appends an op. For operands that came from outside: InvalidArgument or Unsupported with the op's kind,
  // name and operand shapes when the op's shape rule refuses them.
  Result<std::vector<ValueId>> try_add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {},
                                       std::string name = {});
  // For our own rewriting (vjps, passes), where a refusal would be our mistake: CHECKs.
  std::vector<ValueId> add_all(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {},
                               std::string name = {});
  // The first output of add_all.
  ValueId add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}, std::string name = {}) {
    return add_all(kind, std::move(inputs), std::move(attributes), std::move(name)).front();
  }

  // What the ops appended from here on carry. An invalid origin means "the op itself".
  void set_phase(Phase phase) { phase_ = phase; }
  void set_origin(OpId origin) { origin_ = origin; }

  void set_group(OpId op, GroupId group) { graph_.ops_[op.index].group = group; }
  void set_layout(ValueId value, Layout layout) { graph_.values_[value.index].layout = layout; }
  void set_name(ValueId value, std::string name) { graph_.values_[value.index].name = std::move(name); }
  void set_role(std::string_view initializer, InitializerRole role);

  void output(std::string name, ValueId value, OutputRole role) {
    graph_.outputs_.push_back({std::move(name), value, role});
  }

  // A copy: what is inside moves as ops are appended.
  TensorSpec spec(ValueId value) const { return graph_.spec(value); }
  const Graph& graph() const { return graph_; }  // what has been built so far
  const OpTable& table() const { return *table_; }

  Graph finish() { return std::move(graph_); }

 private:
  ValueId add_leaf(OpKind kind, Attributes attributes, TensorSpec spec, std::string name);
  const OpTable* table_;
  Graph graph_;
  Phase phase_ = Phase::Forward;
  OpId origin_;
};

// Copies `source` op by op into a new graph while a pass changes what it wants. Inputs, initializers,
// constants are copied first come first served; `map` holds source value -> new value.
class GraphCopy {
 public:
  GraphCopy(const Graph& source, const OpTable& table)
      : source_(source), builder_(table), map_(source.values().size()) {}

  GraphBuilder& builder() { return builder_; }
  const Graph& source() const { return source_; }
  ValueId mapped(ValueId value) const { return value.valid() ? map_[value.index] : value; }
  void map(ValueId from, ValueId to) { map_[from.index] = to; }
  // Appends the same op over the mapped operands, with its phase, group, names, layouts; origin mapped too.
  void copy(OpId op);
  void copy_outputs();  // all of source's outputs, mapped
  Graph finish() { return builder_.finish(); }

 private:
  const Graph& source_;
  GraphBuilder builder_;
  std::vector<ValueId> map_;
  std::vector<OpId> op_map_;
};

}  // namespace weft::dag
