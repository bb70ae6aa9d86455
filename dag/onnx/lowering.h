// Internal to dag/onnx: what a lowering sees of one ONNX node, and how it appends ops.
//
// A lowering reads attributes and operands from a NodeContext, emits ops of weft's closed set and names the
// results. Attribute reads never fail on the spot: a wrong type is remembered and the next emit() reports it.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/onnx/import.h"
#include "dag/onnx/schema.h"
#include "dag/onnx/stored_nodes.h"
#include "dag/onnx/structure.h"
#include "dag/op_table.h"

namespace weft::onnx {

using dag::Attr;
using dag::Attributes;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using dag::Tensor;
using dag::TensorSpec;
using dag::to_string;
using dag::ValueId;

// A value of the ONNX graph during import: known now, or in the graph under construction, or both.
struct Item {
  TensorSpec spec;
  ValueId id;
  std::optional<Tensor> known;
  std::string initializer = {};  // its name, when it is an initializer of the file as it stands
  // Of integers that quantisation made: the same numbers as floats, through which a gradient passes.
  std::shared_ptr<const Item> as_float = nullptr;
  bool four_bits = false;  // stored as int4 or uint4, which eight bits hold here where they are known
  bool packed = false;     // neither known nor in the graph: an initializer of four bits that stays as it is
  // Set: no tensor but a sequence of these. Only rows that say so see one.
  std::shared_ptr<const std::vector<Item>> sequence = nullptr;

  // Nothing: stands for an optional operand that is not there.
  bool absent() const { return !id.valid() && !known; }
  const Shape& shape() const { return spec.shape; }
  int64_t rank() const { return spec.rank(); }
  DType dtype() const { return spec.dtype; }
};
using Items = std::vector<Item>;

// Appends ops to the graph, or computes them now when all operands are known and the result is small.
class Emitter {
 public:
  Emitter(const ImportOptions& options, const dag::OpTable& table)
      : options_(options), table_(table), builder_(table) {}

  dag::GraphBuilder& builder() { return builder_; }
  const ImportOptions& options() const { return options_; }

  Result<Items> emit_all(OpKind kind, Items inputs, Attributes attributes, const std::string& name);
  Item constant(Tensor tensor) const { return {tensor.spec(), {}, tensor, {}}; }
  // Counts bytes that a lowering makes itself.
  Status charge(int64_t bytes);
  int64_t made_bytes() const { return made_bytes_; }  // charged so far
  // The item's value in the graph, as a leaf if it is not there yet; invalid when it is absent.
  ValueId materialise(Item& item);

 private:
  struct Folded {
    Items inputs;  // keeps the operands alive, whose addresses are the key
    Items outputs;
  };
  Result<std::vector<TensorSpec>> infer(OpKind kind, const Items& inputs, const Attributes& attributes,
                                        const std::string& name) const;
  int64_t fold_work(OpKind kind, const Items& inputs, const Attributes& attributes,
                    const std::vector<TensorSpec>& outputs) const;
  Result<std::optional<Items>> fold(OpKind kind, const Items& inputs, const Attributes& attributes,
                                    const std::vector<TensorSpec>& specs);

  const ImportOptions& options_;
  const dag::OpTable& table_;
  dag::GraphBuilder builder_;
  int64_t folded_bytes_ = 0;
  int64_t made_bytes_ = 0;
  int64_t folded_work_ = 0;
  std::unordered_map<std::string, Folded> folded_;
  std::map<std::string, ValueId> leaves_;  // constants by content or address, so that equal ones are one
  std::vector<Tensor> kept_;               // tensors whose addresses are keys in leaves_
};

// What lives across the nodes of one import.
struct ImportState {
  Emitter& emitter;
  int64_t opset = 0;
  const std::unordered_map<std::string, int>& use_counts;  // how often each ONNX value is read
  // BatchNormalization: the newest value of each running statistic, by initializer, in order of first use.
  std::vector<std::pair<std::string, Item>> running;
  int64_t draw_count = 0;  // ops that draw random numbers: each has a key of its own
  // Appends what a subgraph computes from these values of its inputs; its outputs.
  std::function<Result<Items>(const pb::GraphProto& body, Items inputs)> lower_body;
  int64_t unrolled_left = 0;                                 // nodes that bodies may still become
  std::map<std::array<int64_t, 3>, Item> causal_masks = {};  // by queries, keys and offset
  const HeldTensors& held;
  // Those of the file that become initializers of the graph: none unless they are to be kept.
  StoredWeights kept = {};
  std::map<std::string, Item> whole = {};  // stored weights that are initializers of the graph, by name
  std::map<std::string, ValueId> stored_parts = {};  // what such a weight is made of, where ops read it
  dag::StoredForms stored = {};
  // Running statistics that do not move.
  std::set<std::string> held_statistics = {};
  std::optional<int64_t> batch = std::nullopt;  // of inputs whose batch the file leaves open
  std::string literal_batch = {};  // what to try where a node wrote another batch down; empty when none did
};

class NodeContext {
 public:
  NodeContext(ImportState& state, const pb::NodeProto& node, Items inputs, std::vector<bool> present)
      : state_(state),
        node_(node),
        inputs_(std::move(inputs)),
        present_(std::move(present)),
        outputs_(static_cast<size_t>(node.output_size())) {}

  ImportState& state() { return state_; }
  const ImportOptions& options() const { return state_.emitter.options(); }
  int64_t opset() const { return state_.opset; }
  // Of inputs whose batch the file leaves open.
  std::optional<int64_t> batch() const { return state_.batch; }
  const std::string& op_type() const { return node_.op_type(); }
  std::string name() const {
    return !node_.name().empty() ? node_.name() : node_.output_size() ? node_.output(0) : "";
  }

  // Operands.
  size_t count() const { return inputs_.size(); }
  bool has(size_t i) const { return i < inputs_.size() && present_[i]; }
  // An absent item where there is no such operand.
  const Item& in(size_t i) const;
  Status need(size_t operands) const;  // that many leading operands are present
  // The integers of an operand that decides shapes. Unsupported when it depends on data.
  Result<Ints> ints(size_t i, const char* what) const;
  Result<int64_t> one_int(size_t i, const char* what) const;

  // Attributes.
  bool has_attr(std::string_view name) const { return find(name) != nullptr; }
  int64_t int_attr(std::string_view name, int64_t otherwise);
  double float_attr(std::string_view name, double otherwise);  // finite, or the node is refused
  std::string string_attr(std::string_view name, std::string otherwise);
  Ints ints_attr(std::string_view name);  // empty when absent
  std::vector<double> floats_attr(std::string_view name);
  std::vector<std::string> strings_attr(std::string_view name);
  const pb::TensorProto* tensor_attr(std::string_view name);
  const pb::GraphProto* graph_attr(std::string_view name);
  // A normalised axis attribute.
  Result<int64_t> axis_attr(std::string_view name, int64_t otherwise, int64_t rank);

  // What the node reads in fewer bits, unless that is trained.
  std::optional<StoredWeight> stored_weight();
  // Whether it is to be an initializer of the graph, and not made by an op: the file has it, and a name in it
  // means one.
  bool keeps(const StoredWeight& weight) const { return is_one_of(state_.kept, weight); }
  // It as a value: that initializer, or an op's result. Its parts as an op reads them. REQUIRES: of this
  // node.
  Result<Item> whole(const StoredWeight& weight);
  Result<std::vector<ValueId>> parts(const StoredWeight& weight);

  // Results.
  size_t output_count() const { return outputs_.size(); }
  // Whether anyone reads output i (or the graph returns it).
  bool wants(size_t i) const;
  // A result that the node does not list is let go.
  void out(size_t i, Item item) {
    if (i < outputs_.size()) outputs_[i] = std::move(item);
  }
  Status give(Result<Item> item);  // output 0
  std::vector<std::optional<Item>>& outputs() { return outputs_; }

  // Ops.
  Result<Items> emit_all(OpKind kind, Items inputs, Attributes attributes = {});
  Result<Item> emit(OpKind kind, Items inputs, Attributes attributes = {});
  Item constant(Tensor tensor) const { return state_.emitter.constant(std::move(tensor)); }
  // Of a size that the file chooses: what all of these take together is bounded.
  Result<Item> large_constant(Tensor tensor);
  Item scalar(DType dtype, double value) const { return constant(dag::make_scalar(dtype, value)); }
  Item like(const Item& item, double value) const { return scalar(item.dtype(), value); }
  Result<Item> reshape(const Item& x, Shape shape);
  Result<Item> transpose(const Item& x, Ints perm);
  Result<Item> expand(const Item& x, Shape shape);
  Result<Item> cast(const Item& x, DType dtype);
  Result<Item> slice(const Item& x, int64_t axis, int64_t start, int64_t size, int64_t step = 1);
  Result<Item> reduce(OpKind kind, const Item& x, Ints axes, bool keep_dims);

  // Where `count` is the batch under which a shape of the file's own fits: what to set. Empty without one.
  std::string literal_batch_cure(int64_t count) const;
  // Should a later node be refused, that may be why.
  void note_literal_batch(const std::string& cure) {
    if (state_.literal_batch.empty()) state_.literal_batch = cure;
  }

  tl::unexpected<Error> refuse(ErrorCode code, const std::string& why) const;
  tl::unexpected<Error> unsupported(const std::string& why) const {
    return refuse(ErrorCode::Unsupported, why);
  }
  tl::unexpected<Error> invalid(const std::string& why) const {
    return refuse(ErrorCode::InvalidArgument, why);
  }
  const Status& attribute_status() const { return attribute_status_; }

 private:
  const pb::AttributeProto* find(std::string_view name) const;
  const pb::AttributeProto* find(std::string_view name, pb::AttributeProto::AttributeType type);

  ImportState& state_;
  const pb::NodeProto& node_;
  Items inputs_;
  std::vector<bool> present_;
  std::vector<std::optional<Item>> outputs_;
  Status attribute_status_;
};

using LowerFunction = Status (*)(NodeContext&);

// Operands by number, as bits; of more than 31 operands, all count as the last one.
using OperandSet = uint32_t;
inline constexpr OperandSet kAllOperands = 0x7fffffff;
inline constexpr OperandSet kNoOperand = 0;
template <typename... Numbers>
constexpr OperandSet operands(Numbers... numbers) {
  return ((OperandSet{1} << numbers) | ...);
}
constexpr bool has_operand(OperandSet set, int number) { return (set >> std::min(number, 30) & 1) != 0; }
// As `gradient`: operand 0, when attribute `to` names a float type.
inline constexpr OperandSet kWhenToFloat = OperandSet{1} << 31;

// All that the import has to know of an ONNX operator.
struct LowerRow {
  std::string_view op_type;
  LowerFunction lower;
  OperandSet gradient = kAllOperands;  // into which a gradient flows
  OperandSet shapes = kNoOperand;      // which decide shapes, and must be known at import
  bool has_bodies = false;             // its attributes hold subgraphs, which it lowers
  bool takes_sequences = false;        // an operand may be a sequence
};

// The lowerings of each family; find_lowering searches them all. nullptr when there is none. `domain`: "" is
// ONNX's own.
std::span<const LowerRow> elementwise_lowerings();
std::span<const LowerRow> activation_lowerings();
std::span<const LowerRow> shape_lowerings();
std::span<const LowerRow> index_lowerings();
std::span<const LowerRow> reduction_lowerings();
std::span<const LowerRow> matmul_lowerings();
std::span<const LowerRow> stored_lowerings();  // of com.microsoft
std::span<const LowerRow> convolution_lowerings();
std::span<const LowerRow> pooling_lowerings();
std::span<const LowerRow> normalisation_lowerings();
std::span<const LowerRow> softmax_lowerings();
std::span<const LowerRow> generator_lowerings();
std::span<const LowerRow> random_lowerings();
std::span<const LowerRow> recurrent_lowerings();
std::span<const LowerRow> sampling_lowerings();
std::span<const LowerRow> scatter_lowerings();
std::span<const LowerRow> attention_lowerings();
std::span<const LowerRow> state_lowerings();
std::span<const LowerRow> quantisation_lowerings();
std::span<const LowerRow> signal_lowerings();
std::span<const LowerRow> control_lowerings();
std::span<const LowerRow> sequence_lowerings();
std::span<const LowerRow> microsoft_lowerings();  // of the domain com.microsoft
const LowerRow* find_lowering(std::string_view domain, std::string_view op_type);
// Why an operator is refused on purpose; empty for one that nobody knows.
std::string_view why_refused(std::string_view op_type);

// x divided by the root of its mean square over the dims from `axis` on, and what it was multiplied with.
struct RmsNorm {
  Item y, inverse;
};
Result<RmsNorm> rms_norm(NodeContext& node, const Item& x, int64_t axis, double epsilon);

// Spatial windows of Conv, ConvTranspose and the pools: strides, dilations and pads made explicit.
struct Windows {
  Ints kernel, strides, dilations, pads;
};
// `spatial` are the input's spatial dims. Handles auto_pad.
Result<Windows> read_windows(NodeContext& node, const Shape& spatial, Ints kernel);

}  // namespace weft::onnx
