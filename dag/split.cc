#include "dag/split.h"

#include <algorithm>
#include <map>

namespace weft::dag {
namespace {

// One stage's piece, op by op in the order in which they run.
class StageBuilder {
 public:
  StageBuilder(const Lowered& lowered, const std::vector<bool>& copied, const OpTable& table)
      : lowered_(lowered), whole_(lowered.graph), copied_(copied), builder_(table) {}

  // By value of the lowered whole; invalid when it is not here.
  ValueId local(ValueId value) const {
    const auto at = values_.find(value.index);
    return at == values_.end() ? ValueId{} : at->second;
  }

  // Ops that run as one, with what they read. What this stage does not make comes here with its first reader.
  // All of a segment is of its phase, leaves too.
  void add(std::span<const uint32_t> ops, uint32_t segment, Phase phase) {
    const auto inside = [&](ValueId value) {
      return std::binary_search(ops.begin(), ops.end(), whole_.value(value).producer.index);
    };
    for (const uint32_t i : ops)
      for (const ValueId input : whole_.ops()[i].inputs)
        if (input.valid() && !inside(input)) fetch(input, segment, phase);
    for (const uint32_t i : ops) {
      const Op& op = whole_.ops()[i];
      if (op.inputs.empty() && local(op.outputs[0]).valid()) continue;  // a copied leaf that was read before
      copy(OpId{i}, phase, segment);
    }
  }

  // Puts the value here as it is in the lowered whole.
  void fetch(ValueId value, uint32_t segment, Phase phase) {
    if (local(value).valid()) return;
    const OpId producer = whole_.value(value).producer;
    if (lowered_.put_in[producer.index]) {
      fetch(whole_.op(producer).inputs[0], segment, phase);
      copy(producer, phase, segment);
    } else if (copied_[lowered_.source_op[producer.index].index]) {
      copy(producer, phase, segment);
    } else {
      receive(value, phase, segment);
    }
  }

  StageGraph finish() {
    piece_.graph = builder_.finish();
    WEFT_CHECK(piece_.segment_of_op.size() == piece_.graph.ops().size());
    return std::move(piece_);
  }

  GraphBuilder& builder() { return builder_; }

 private:
  void note(OpId whole, uint32_t segment) {
    piece_.segment_of_op.push_back(segment);
    piece_.op_in_whole.push_back(lowered_.source_op[whole.index]);
    piece_.segment_count = std::max(piece_.segment_count, segment + 1);
  }

  void receive(ValueId value, Phase phase, uint32_t segment) {
    const OpId producer = whole_.value(value).producer;
    builder_.set_phase(phase);
    builder_.set_origin(OpId{});
    const ValueId input = builder_.input("edge." + std::to_string(value.index), whole_.spec(value));
    builder_.set_layout(input, whole_.value(value).layout);
    values_[value.index] = input;
    note(producer, segment);
  }

  void copy(OpId id, Phase phase, uint32_t segment) {
    const Op& op = whole_.op(id);
    builder_.set_phase(phase);
    const auto origin = ops_.find(op.origin.index);
    builder_.set_origin(op.origin == id || origin == ops_.end() ? OpId{} : origin->second);
    std::vector<ValueId> outputs;
    if (op.kind == OpKind::Input) {
      outputs = {builder_.input(op.attributes.get_string(Attr::Name), whole_.spec(op.outputs[0]),
                                whole_.input_role(op.outputs[0]))};
    } else if (op.kind == OpKind::Initializer) {
      const Initializer* initializer = whole_.find_initializer(op.attributes.get_string(Attr::Name));
      outputs = {builder_.initializer(initializer->name, whole_.spec(op.outputs[0]), initializer->role)};
    } else if (op.kind == OpKind::Constant) {
      outputs = {builder_.constant(whole_.constant(op), op.name)};
    } else {
      std::vector<ValueId> inputs;
      inputs.reserve(op.inputs.size());
      for (const ValueId input : op.inputs) inputs.push_back(input.valid() ? local(input) : input);
      outputs = builder_.add_all(op.kind, std::move(inputs), op.attributes, op.name);
    }
    const OpId copied = builder_.graph().value(outputs[0]).producer;
    ops_[id.index] = copied;
    builder_.set_group(copied, op.group);
    for (size_t i = 0; i < outputs.size(); ++i) {
      values_[op.outputs[i].index] = outputs[i];
      builder_.set_layout(outputs[i], whole_.value(op.outputs[i]).layout);
      builder_.set_name(outputs[i], whole_.value(op.outputs[i]).name);
    }
    note(id, segment);
  }

  const Lowered& lowered_;
  const Graph& whole_;
  const std::vector<bool>& copied_;  // by op of the source
  GraphBuilder builder_;
  StageGraph piece_;
  std::map<uint32_t, ValueId> values_;  // lowered whole -> local
  std::map<uint32_t, OpId> ops_;
};

}  // namespace

std::vector<uint32_t> stages_by_origin(const Graph& graph, std::span<const uint32_t> stage_of_forward_op) {
  WEFT_CHECK(stage_of_forward_op.size() == graph.ops().size());
  std::vector<uint32_t> stages(stage_of_forward_op.begin(), stage_of_forward_op.end());
  for (uint32_t i = 0; i < stages.size(); ++i) {
    OpId origin{i};
    while (graph.op(origin).phase == Phase::Backward && graph.op(origin).origin != origin)
      origin = graph.op(origin).origin;
    stages[i] = stages[origin.index];
  }
  // What changes an initializer has to be where it is. A sum of gradient terms has the initializer as its
  // origin and is there already; a lone term is where the initializer's only user is.
  std::map<std::string_view, ValueId> initializer_of;
  for (const Initializer& initializer : graph.initializers())
    initializer_of[initializer.name] = initializer.value;
  for (const GraphOutput& output : graph.outputs()) {
    if (output.role != OutputRole::Gradient && output.role != OutputRole::StateUpdate) continue;
    stages[graph.value(initializer_of.at(output.name)).producer.index] =
        stages[graph.value(output.value).producer.index];
  }
  return stages;
}

namespace {

// By group of the graph, how many ops run in it.
std::vector<uint32_t> group_sizes(const Graph& graph) {
  std::vector<uint32_t> sizes;
  for (const Op& op : graph.ops()) {
    if (!op.group.valid()) continue;
    if (op.group.index >= sizes.size()) sizes.resize(op.group.index + 1, 0);
    ++sizes[op.group.index];
  }
  return sizes;
}

}  // namespace

std::vector<bool> movable_sums(const Graph& graph, std::span<const std::shared_ptr<const Lowered>> classes) {
  std::vector<bool> movable(graph.ops().size(), false);
  std::vector<std::vector<uint32_t>> sizes;
  for (const auto& lowered : classes) sizes.push_back(group_sizes(lowered->graph));
  const std::vector<uint32_t> own_sizes = group_sizes(graph);
  const auto is_alone = [](const Op& op, const std::vector<uint32_t>& of) {
    return !op.group.valid() || of[op.group.index] == 1;
  };
  for (uint32_t i = 0; i < movable.size(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.kind != OpKind::Add || op.phase != Phase::Backward || !is_alone(op, own_sizes)) continue;
    movable[i] = std::all_of(op.inputs.begin(), op.inputs.end(), [&](ValueId term) {
      return graph.producer(term).phase == Phase::Backward && graph.spec(term) == graph.spec(op.outputs[0]);
    });
    for (size_t c = 0; c < classes.size(); ++c)
      movable[i] = movable[i] && is_alone(classes[c]->graph.op(classes[c]->op_of[i]), sizes[c]);
  }
  // What is added to a parameter is made where that is.
  for (const GraphOutput& output : graph.outputs()) movable[graph.value(output.value).producer.index] = false;
  return movable;
}

std::vector<uint32_t> move_sums(const Graph& graph, std::span<const std::shared_ptr<const Lowered>> classes,
                                std::vector<uint32_t> stage_of_op) {
  return move_sums(graph, movable_sums(graph, classes), graph.users(), std::move(stage_of_op));
}

std::vector<uint32_t> move_sums(const Graph& graph, const std::vector<bool>& movable,
                                const std::vector<std::vector<OpId>>& users,
                                std::vector<uint32_t> stage_of_op) {
  for (uint32_t i = 0; i < stage_of_op.size(); ++i) {
    if (!movable[i]) continue;
    const Op& op = graph.ops()[i];
    const auto maker = [&](size_t term) { return stage_of_op[graph.value(op.inputs[term]).producer.index]; };
    const auto crosses_anyway = [&](size_t term) {
      const auto& readers = users[op.inputs[term].index];
      return std::any_of(readers.begin(), readers.end(), [&](OpId reader) {
        return reader.index != i && stage_of_op[reader.index] == stage_of_op[i];
      });
    };
    if (maker(0) == maker(1) && !(crosses_anyway(0) && crosses_anyway(1))) stage_of_op[i] = maker(0);
  }
  return stage_of_op;
}

namespace {

// The ops of all stages of one class, each stage's segment by segment, which is the order in which they run:
// lifetimes are read off it. A graph's output is put in the layout in which it leaves where it is made.
void add_ops(const CutRequest& request, const Cut& cut, uint32_t device_class,
             std::vector<StageBuilder>& builders) {
  const Lowered& lowered = *request.classes[device_class];
  const auto source = [&](uint32_t i) { return lowered.source_op[i].index; };
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < lowered.graph.ops().size(); ++i)
    if (!lowered.put_in[i] && request.class_of_stage[request.stage_of_op[source(i)]] == device_class)
      order.push_back(i);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return cut.segment_of_op[source(a)] < cut.segment_of_op[source(b)];
  });
  // By op of the source: graph outputs that a Reorder puts in their layout behind it.
  std::map<uint32_t, std::vector<ValueId>> reordered;
  const auto& outputs = request.graph->outputs();
  for (size_t o = 0; o < outputs.size(); ++o) {
    const ValueId value = lowered.graph.outputs()[o].value;
    if (lowered.put_in[lowered.graph.value(value).producer.index])
      reordered[request.graph->value(outputs[o].value).producer.index].push_back(value);
  }
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    const GroupId group = lowered.graph.ops()[order[begin]].group;
    for (end = begin + 1;
         group.valid() && end < order.size() && lowered.graph.ops()[order[end]].group == group;)
      ++end;
    const uint32_t first = source(order[begin]), stage = request.stage_of_op[first];
    const uint32_t segment = cut.segment_of_op[first];
    const Phase phase = segment < cut.stages[stage].forward_segments ? Phase::Forward : Phase::Backward;
    StageBuilder& builder = builders[stage];
    const std::span ops(order.data() + begin, end - begin);
    builder.add(ops, segment, phase);
    for (const uint32_t i : ops)
      if (const auto at = reordered.find(source(i)); at != reordered.end())
        for (const ValueId value : at->second) builder.fetch(value, segment, phase);
  }
  for (size_t o = 0; o < outputs.size(); ++o) {
    const uint32_t stage = request.stage_of_op[request.graph->value(outputs[o].value).producer.index];
    if (request.class_of_stage[stage] != device_class) continue;
    StageBuilder& builder = builders[stage];
    builder.builder().output(outputs[o].name, builder.local(lowered.graph.outputs()[o].value),
                             outputs[o].role);
  }
}

Status check_outputs(const Graph& graph, std::span<const uint32_t> stage_of_op) {
  for (const GraphOutput& output : graph.outputs()) {
    if (output.role != OutputRole::Gradient && output.role != OutputRole::StateUpdate) continue;
    const uint32_t owner =
        stage_of_op[graph.value(graph.find_initializer(output.name)->value).producer.index];
    const uint32_t made = stage_of_op[graph.value(output.value).producer.index];
    if (owner != made)
      return fail(ErrorCode::InvalidArgument,
                  "initializer '" + output.name + "' is in stage " + std::to_string(owner) + ", its " +
                      std::string(to_string(output.role)) + " in stage " + std::to_string(made));
  }
  return {};
}
}  // namespace

Result<Split> split(const CutRequest& request, const OpTable& table) {
  const Graph& graph = *request.graph;
  WEFT_TRY(const Cut cut, dag::cut(request));
  for (uint32_t stage = 0; stage < cut.stages.size(); ++stage)
    if (cut.stages[stage].segments == 0)
      return fail(ErrorCode::InvalidArgument, "stage " + std::to_string(stage) + " has no ops");
  WEFT_TRY_STATUS(check_outputs(graph, request.stage_of_op));

  const std::vector<bool> copied = copied_leaves(graph);
  Split result;
  std::vector<StageBuilder> builders;
  for (const uint32_t device_class : request.class_of_stage)
    builders.emplace_back(*request.classes[device_class], copied, table);
  for (uint32_t c = 0; c < request.classes.size(); ++c) add_ops(request, cut, c, builders);
  for (const Crossing& crossing : cut.crossings) {
    const auto at = [&](uint32_t stage) {
      return builders[stage].local(
          request.classes[request.class_of_stage[stage]]->value_of[crossing.value.index]);
    };
    result.cut_edges.push_back({crossing.value, crossing.from_stage, crossing.to_stage,
                                at(crossing.from_stage), at(crossing.to_stage)});
  }
  for (StageBuilder& builder : builders) result.stages.push_back(builder.finish());
  return result;
}

Result<Split> split(const Graph& graph, std::span<const uint32_t> stage_of_op, uint32_t stage_count,
                    const OpTable& table) {
  const Lowered whole = as_it_is(graph);
  const Lowered* const classes[] = {&whole};
  return split({&graph, stage_of_op, classes, std::vector<uint32_t>(stage_count, 0)}, table);
}

Relowered relower(const StageGraph& stage, const BackendTraits& traits, const OpTable& table) {
  std::vector<ValueId> raised_value;
  const Graph raised = raise(stage.graph, table, raised_value);
  std::vector<uint32_t> segment_of_op(raised.ops().size(), 0);
  for (uint32_t v = 0; v < raised_value.size(); ++v) {
    const OpId before = stage.graph.value({v}).producer;
    if (stage.graph.op(before).kind != OpKind::Reorder)
      segment_of_op[raised.value(raised_value[v]).producer.index] = stage.segment_of_op[before.index];
  }
  Lowered lowered = lower_traced(raised, table, traits, segment_of_op);
  Relowered result;
  for (const ValueId value : raised_value) result.value_of.push_back(lowered.value_of[value.index]);
  // A Reorder behind the last op, for what leaves the graph, belongs to the end.
  uint32_t segment = 0;
  for (const OpId source : lowered.source_op)
    result.stage.segment_of_op.push_back(segment = std::max(segment, segment_of_op[source.index]));
  result.stage.segment_count = stage.segment_count;
  result.stage.graph = std::move(lowered.graph);
  return result;
}

}  // namespace weft::dag
