// One row for each op: everything about it that is not a kernel. Families add their rows
// (dag/ops/<family>.cc); make_op_table() lists the families, so reading it shows the whole set.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/graph.h"

namespace weft::dag {

enum class Family : uint8_t {
  Leaf,
  Elementwise,
  Shape,
  Reduction,
  MatMul,
  Convolution,
  Normalisation,
  Softmax,
  Pooling,
  Random,
  Sampling,
  Recurrent
};
std::string_view to_string(Family family);

// What a shape rule sees. An absent optional operand is nullptr.
struct ShapeContext {
  std::span<const TensorSpec* const> inputs;
  const Attributes& attributes;

  const TensorSpec& in(size_t i) const { return *inputs[i]; }
  bool has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
};

// What a vjp rule sees: the forward op inside a graph under construction. It appends ops through `builder`
// (phase and origin are already set) and says what flows to each operand.
class VjpContext {
 public:
  VjpContext(GraphBuilder& builder, const Op& op, std::vector<ValueId> output_cotangents)
      : builder_(builder),
        op_(op),
        output_cotangents_(std::move(output_cotangents)),
        input_cotangents_(op.inputs.size()) {}

  GraphBuilder& builder() { return builder_; }
  const Op& op() const { return op_; }
  const Attributes& attributes() const { return op_.attributes; }
  ValueId in(size_t i) const { return op_.inputs[i]; }
  bool has_in(size_t i) const { return i < op_.inputs.size() && op_.inputs[i].valid(); }
  ValueId out(size_t i = 0) const { return op_.outputs[i]; }
  // Cotangent of output i; invalid when none flows there.
  ValueId cotangent(size_t i = 0) const { return output_cotangents_[i]; }
  TensorSpec spec(ValueId value) const { return builder_.spec(value); }
  // Whether anyone wants the cotangent of operand i. Rules may skip work when not.
  bool wants(size_t i) const { return wanted_.empty() || wanted_[i]; }
  void set_wanted(std::vector<bool> wanted) { wanted_ = std::move(wanted); }

  ValueId add(OpKind kind, std::vector<ValueId> inputs, Attributes attributes = {}) {
    return builder_.add(kind, std::move(inputs), std::move(attributes));
  }
  // Sums `cotangent` over the dims that broadcasting stretched, so that it has `operand`'s shape.
  ValueId sum_to(ValueId cotangent, ValueId operand);

  void set(size_t i, ValueId cotangent) { input_cotangents_[i] = cotangent; }
  const std::vector<ValueId>& input_cotangents() const { return input_cotangents_; }

 private:
  GraphBuilder& builder_;
  const Op op_;  // a copy: the builder's storage moves as ops are appended
  std::vector<ValueId> output_cotangents_;
  std::vector<ValueId> input_cotangents_;
  std::vector<bool> wanted_;
};

enum class Differentiability : uint8_t {
  Differentiable,  // has a vjp
  Zero,            // no cotangent flows: comparisons, integers, rounding
  Refused,         // must not be asked: ops that only appear in backward or update passes
};

// A layout rule sees an op whose operands' layouts are known, and says in which layout each operand has to
// lie and in which each result then does: plain, unless the rule says otherwise (dag/lower.cc puts a Reorder
// where layouts meet).
class LayoutContext {
 public:
  // `layouts`: of the graph's values so far, by value. `any_blocked`: whether one of them is not plain.
  LayoutContext(const Graph& graph, const Op& op, Layout blocked, std::span<const Layout> layouts,
                bool any_blocked);

  const TensorSpec& in(size_t i) const { return graph_.spec(op_.inputs[i]); }
  const TensorSpec& out(size_t i = 0) const { return graph_.spec(op_.outputs[i]); }
  const Attributes& attributes() const { return op_.attributes; }
  size_t input_count() const { return op_.inputs.size(); }
  int64_t block() const { return block_; }  // channels of a block
  bool any_blocked() const { return any_blocked_; }
  // Operand i is there and lies blocked already.
  bool is_blocked(size_t i) const {
    return op_.inputs[i].valid() && layouts_[op_.inputs[i].index] == blocked_;
  }
  // F32 images whose channels fill whole blocks, of more than one pixel.
  bool fits(const TensorSpec& spec) const {
    return spec.dtype == DType::F32 && spec.rank() == 4 && spec.shape[1] % block_ == 0 &&
           spec.shape[2] * spec.shape[3] > 1;
  }

  void block_in(size_t i) { inputs_[i] = blocked_; }
  void block_out(size_t i = 0) { outputs_[i] = blocked_; }
  const std::vector<Layout>& inputs() const { return inputs_; }
  const std::vector<Layout>& outputs() const { return outputs_; }

 private:
  const Graph& graph_;
  const Op& op_;
  Layout blocked_;
  int64_t block_;
  std::span<const Layout> layouts_;
  bool any_blocked_;
  std::vector<Layout> inputs_, outputs_;
};

// What an op's flops are counted as: a unit of the device with a rate of its own.
enum class Work : uint8_t { Memory, MatMul, Convolution };

// Integers that address a dim: operand `operand` holds places along attribute Axis of operand 0.
struct IndexRule {
  int operand = -1;       // -1: the op has no such operand
  bool from_end = false;  // whether a negative place counts from the end
};

struct OpRow {
  OpKind kind;
  Family family = Family::Leaf;
  int inputs_min = 1;
  int inputs_max = 1;
  Differentiability differentiability = Differentiability::Zero;
  // Output specs from operand specs. Errors need not name the op: try_add does.
  Result<std::vector<TensorSpec>> (*infer)(const ShapeContext& context) = nullptr;
  void (*vjp)(VjpContext& context) = nullptr;
  // Floating-point operations of one execution; nullptr: one an output element.
  FlopCount (*flops)(const ShapeContext& context, std::span<const TensorSpec> outputs) = nullptr;
  Work work = Work::Memory;

  // What passes, planner and executor ask, so that none of them knows an op by its name.
  bool view = false;          // the result is operand 0's bytes under another shape, where that lies plain
  bool fusable = false;       // one pass over memory, element by element: may run inside a fusion group
  bool reads_part = false;    // reads of operand 0 only as much as it hands on
  bool keeps_values = false;  // every element of the result is an element of operand 0, perhaps cast
  bool draws = false;         // draws random numbers: never folded into a constant
  // The operand whose bytes the result takes over on every device that has much memory to save, where nobody
  // needs them afterwards and both are as large; -1: none.
  int in_place = -1;
  IndexRule index = {};
  void (*layout)(LayoutContext& context) = nullptr;  // nullptr: everything plain

  // One line for docs/OPS.md: operands, results, attributes, meaning.
  std::string_view about;
};

class OpTable {
 public:
  void add(OpRow row);
  const OpRow& row(OpKind kind) const { return rows_[static_cast<size_t>(kind)]; }
  std::span<const OpRow> rows() const { return rows_; }

 private:
  std::array<OpRow, kOpKindCount> rows_{};
};

// The table of all families. Immutable, the same object for everyone.
const OpTable& op_table();

// Estimated work of an op inside a graph, by its row.
FlopCount op_flops(const Graph& graph, const Op& op);
// Bytes read and written, each operand and result once.
Bytes op_bytes(const Graph& graph, const Op& op);

// The families, in the order of make_op_table().
void add_leaf_ops(OpTable& table);
void add_elementwise_ops(OpTable& table);
void add_shape_ops(OpTable& table);
void add_index_ops(OpTable& table);
void add_reduction_ops(OpTable& table);
void add_matmul_ops(OpTable& table);
void add_stored_ops(OpTable& table);
void add_attention_ops(OpTable& table);
void add_convolution_ops(OpTable& table);
void add_normalisation_ops(OpTable& table);
void add_softmax_ops(OpTable& table);
void add_pooling_ops(OpTable& table);
void add_random_ops(OpTable& table);

void add_sampling_ops(OpTable& table);
void add_recurrent_ops(OpTable& table);

// Whether the op's result is its operand's bytes, as they lie in this graph.
bool is_view(const Graph& graph, const Op& op);
// Channels of a block; 1 when plain.
int64_t block_size(Layout layout);

// Used by several families: numpy broadcasting, and an axis in [-rank, rank) made non-negative.
Result<Shape> broadcast_shapes(const Shape& a, const Shape& b);
Result<int64_t> normalise_axis(int64_t axis, int64_t rank);

}  // namespace weft::dag
