#include "dag/passes/halves.h"

#include <algorithm>
#include <set>

#include "dag/autodiff.h"

namespace weft::dag {
namespace {

// Whether each number of the result is one of an operand's, or its negation: halves make halves.
bool makes_no_new_number(const Op& op, const OpTable& table) {
  switch (op.kind) {
    case OpKind::Neg:
    case OpKind::Abs:
    case OpKind::Sign:
    case OpKind::Relu:
    case OpKind::Min:
    case OpKind::Max:
    case OpKind::Clip:  // its bounds are numbers of the file
    case OpKind::Where:
    case OpKind::Pad:
    case OpKind::Gather:
    case OpKind::GatherElements:
    case OpKind::Concat:
    case OpKind::MaxPool:
    case OpKind::ReduceMax:
    case OpKind::ReduceMin:
    case OpKind::TopK:
      return true;
    default:
      return table.row(op.kind).keeps_values;
  }
}

Attributes of_dtype(DType dtype) { return {{Attr::DType, static_cast<int64_t>(dtype)}}; }

class Widening {
 public:
  Widening(const Graph& graph, const OpTable& table, HalfWeights weights)
      : graph_(graph),
        table_(table),
        weights_(weights),
        copy_(graph, table),
        is_half_(graph.values().size()) {
    for (const GraphOutput& output : graph.outputs())
      if (output.role == OutputRole::StateUpdate) {
        updates_.insert(output.value.index);
        updated_.insert(output.name);
      }
  }

  Graph run() {
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) visit(OpId{i});
    for (const GraphOutput& output : graph_.outputs()) {
      round_master(output.value);
      ValueId value = copy_.mapped(output.value);
      if (in_half(output.value) && output.role == OutputRole::Prediction && weights_ == HalfWeights::AsInFile)
        value = emit(OpKind::Cast, value, graph_.spec(output.value).dtype);
      copy_.builder().output(output.name, value, output.role);
    }
    return copy_.finish();
  }

 private:
  bool in_half(ValueId value) const { return dag::is_half(graph_.spec(value).dtype); }
  ValueId emit(OpKind kind, ValueId value, DType dtype) {
    copy_.builder().set_phase(Phase::Forward);
    copy_.builder().set_origin({});
    return copy_.builder().add(kind, {value}, of_dtype(dtype));
  }

  void visit(OpId id) {
    const Op& op = graph_.op(id);
    for (const ValueId input : op.inputs) round_master(input);
    switch (op.kind) {
      case OpKind::Input:
        copy_.copy(id);
        if (in_half(op.outputs[0]))
          give(op.outputs[0], emit(OpKind::Cast, copy_.mapped(op.outputs[0]), DType::F32));
        return;
      case OpKind::Initializer:
        return in_half(op.outputs[0]) ? add_initializer(op) : copy_.copy(id);
      case OpKind::Constant:
        return in_half(op.outputs[0]) ? give(op.outputs[0], add_constant(op)) : copy_.copy(id);
      case OpKind::Cast:
        return in_half(op.inputs[0]) || in_half(op.outputs[0]) ? cast(op) : copy_.copy(id);
      default:
        copy_.copy(id);
        for (const ValueId output : op.outputs)
          if (in_half(output)) round(op, output);
    }
  }

  // `value` stands for `from`, in float32 and with numbers that are halves.
  void give(ValueId from, ValueId value) {
    copy_.map(from, value);
    is_half_[from.index] = true;
  }

  ValueId add_constant(const Op& op) {
    return copy_.builder().constant(widen_half(graph_.constant(op)), op.name);
  }

  void add_initializer(const Op& op) {
    const Initializer& initializer = *graph_.find_initializer(op.attributes.get_string(Attr::Name));
    const TensorSpec& spec = graph_.spec(op.outputs[0]);
    const ValueId value =
        copy_.builder().initializer(initializer.name, {DType::F32, spec.shape}, initializer.role);
    copy_.map(op.outputs[0], value);
    if (updated_.contains(initializer.name)) return;
    const bool changes = initializer.role == InitializerRole::Parameter ||
                         initializer.role == InitializerRole::RunningStatistic;
    if (changes && weights_ == HalfWeights::Masters)
      masters_.insert(op.outputs[0].index);
    else
      give(op.outputs[0], value);
  }
  // Where it is first read, so that what is rounded does not lie about from the graph's beginning.
  void round_master(ValueId value) {
    if (value.valid() && masters_.erase(value.index) > 0)
      give(value, emit(OpKind::RoundToHalf, copy_.mapped(value), graph_.spec(value).dtype));
  }

  void cast(const Op& op) {
    const ValueId from = op.inputs[0], to = op.outputs[0];
    const DType dtype = graph_.spec(to).dtype;
    ValueId value = copy_.mapped(from);
    const auto convert = [&](DType wanted) {
      if (copy_.builder().spec(value).dtype != wanted) value = emit(OpKind::Cast, value, wanted);
    };
    if (!dag::is_half(dtype)) {
      convert(dtype);
      copy_.map(to, value);
      return;
    }
    convert(DType::F32);
    const bool as_it_is = graph_.spec(from).dtype == dtype && is_half_[from.index];
    give(to, as_it_is ? value : emit(OpKind::RoundToHalf, value, dtype));
    name(to);
  }

  void round(const Op& op, ValueId output) {
    const auto holds_halves = [&](ValueId v) { return !v.valid() || !in_half(v) || is_half_[v.index]; };
    if (makes_no_new_number(op, table_) && std::all_of(op.inputs.begin(), op.inputs.end(), holds_halves)) {
      is_half_[output.index] = true;
      return;
    }
    if (graph_.value(output).name.empty() || updates_.contains(output.index)) return;
    copy_.builder().set_name(copy_.mapped(output), {});
    give(output, emit(OpKind::RoundToHalf, copy_.mapped(output), graph_.spec(output).dtype));
    name(output);
  }
  void name(ValueId from) {
    const ValueId to = copy_.mapped(from);
    if (copy_.builder().graph().value(to).name.empty()) copy_.builder().set_name(to, graph_.value(from).name);
  }

  const Graph& graph_;
  const OpTable& table_;
  HalfWeights weights_;
  GraphCopy copy_;
  std::vector<bool> is_half_;   // by value of graph_: whether its numbers in the copy are halves
  std::set<uint32_t> masters_;  // values of graph_: weights that nobody has read yet
  std::set<uint32_t> updates_;  // values of graph_ that become running statistics
  std::set<std::string> updated_;
};

}  // namespace

Graph widen_halves(const Graph& graph, const OpTable& table, HalfWeights weights) {
  const bool any = std::any_of(graph.values().begin(), graph.values().end(),
                               [](const Value& value) { return is_half(value.spec.dtype); });
  return any ? prune(Widening(graph, table, weights).run(), table) : graph;
}

}  // namespace weft::dag
