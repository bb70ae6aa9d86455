#include "dag/recompute.h"

#include <algorithm>
#include <map>
#include <utility>

#include "dag/once_a_step.h"

namespace weft::dag {
namespace {

struct Recomputed {
  StageGraph stage;
  std::vector<ValueId> value_of;  // by value of the graph before: the one of the forward pass
};

class Recomputation {
 public:
  Recomputation(const StageGraph& stage, const OpTable& table)
      : stage_(stage),
        graph_(stage.graph),
        copy_(stage.graph, table),
        repeatable_(repeatable_values(stage.graph)) {
    for (uint32_t i = static_cast<uint32_t>(graph_.ops().size()); i-- > 0;) {
      const GroupId group = graph_.ops()[i].group;
      if (!group.valid()) continue;
      if (first_of_group_.size() <= group.index) first_of_group_.resize(group.index + 1);
      first_of_group_[group.index] = i;
    }
    next_group_ = static_cast<uint32_t>(first_of_group_.size());
    result_.stage.segment_count = stage.segment_count;
  }

  Recomputed run() {
    std::vector<bool> begun(stage_.segment_count, false);
    for (uint32_t i = 0; i < graph_.ops().size(); ++i) {
      const uint32_t segment = stage_.segment_of_op[i];
      if (graph_.ops()[i].phase == Phase::Backward && !begun[segment]) {
        begun[segment] = true;
        repeat_for(segment);
      }
      copy_.copy({i});
      note(i, segment);
    }
    read_first_time();
    copy_.copy_outputs();
    for (uint32_t v = 0; v < graph_.values().size(); ++v) result_.value_of.push_back(copy_.mapped({v}));
    result_.stage.graph = copy_.finish();
    return std::move(result_);
  }

 private:
  void note(uint32_t op, uint32_t segment) {
    result_.stage.segment_of_op.push_back(segment);
    if (!stage_.op_in_whole.empty()) result_.stage.op_in_whole.push_back(stage_.op_in_whole[op]);
  }
  // Groups, each by its first op.
  uint32_t unit(uint32_t op) const {
    const GroupId group = graph_.ops()[op].group;
    return group.valid() ? first_of_group_[group.index] : op;
  }

  // By unit: those that the segment repeats, for its own ops and for one another.
  std::vector<bool> repeated_in(uint32_t segment) const {
    std::vector<bool> repeated(graph_.ops().size(), false);
    for (uint32_t i = static_cast<uint32_t>(graph_.ops().size()); i-- > 0;) {
      const Op& op = graph_.ops()[i];
      const bool reads = op.phase == Phase::Backward && stage_.segment_of_op[i] == segment;
      if (!reads && !repeated[unit(i)]) continue;
      for (const ValueId input : op.inputs)
        if (input.valid() && repeatable_[input.index])
          repeated[unit(graph_.value(input).producer.index)] = true;
    }
    return repeated;
  }

  // Whoever reads in this segment reads the copies.
  void repeat_for(uint32_t segment) {
    read_first_time();
    const std::vector<bool> repeated = repeated_in(segment);
    std::map<uint32_t, GroupId> groups;
    for (uint32_t i = 0; i < repeated.size(); ++i) {
      if (!repeated[unit(i)]) continue;
      const Op& op = graph_.ops()[i];
      if (op.group.valid() && !groups.contains(op.group.index)) groups[op.group.index] = {next_group_++};
      repeat(op, op.group.valid() ? groups.at(op.group.index) : GroupId{});
      note(i, segment);
    }
  }

  void repeat(const Op& op, GroupId group) {
    GraphBuilder& builder = copy_.builder();
    const OpId first = builder.graph().value(copy_.mapped(op.outputs[0])).producer;
    std::vector<ValueId> inputs;
    inputs.reserve(op.inputs.size());
    for (const ValueId input : op.inputs) inputs.push_back(copy_.mapped(input));
    builder.set_phase(Phase::Backward);
    builder.set_origin(first);
    const std::vector<ValueId> outputs = builder.add_all(op.kind, std::move(inputs), op.attributes, op.name);
    builder.set_group(builder.graph().value(outputs[0]).producer, group);
    for (size_t k = 0; k < outputs.size(); ++k) {
      builder.set_layout(outputs[k], graph_.value(op.outputs[k]).layout);
      if (!repeatable_[op.outputs[k].index]) continue;
      first_time_.emplace_back(op.outputs[k], copy_.mapped(op.outputs[k]));
      copy_.map(op.outputs[k], outputs[k]);
    }
  }

  void read_first_time() {
    for (const auto& [value, made] : first_time_) copy_.map(value, made);
    first_time_.clear();
  }

  const StageGraph& stage_;
  const Graph& graph_;
  GraphCopy copy_;
  std::vector<bool> repeatable_;  // by value
  std::vector<uint32_t> first_of_group_;
  uint32_t next_group_ = 0;
  std::vector<std::pair<ValueId, ValueId>> first_time_;  // while copies are read: what the forward pass made
  Recomputed result_;
};

}  // namespace

std::vector<bool> repeatable_values(const Graph& graph) {
  std::vector<bool> changes(graph.values().size(), false);
  for (const GraphOutput& output : graph.outputs())
    if (output.role == OutputRole::StateUpdate)
      changes[graph.find_initializer(output.name)->value.index] = true;
  const std::vector<bool> runs_once = once_a_step(graph);
  std::vector<bool> repeatable(graph.values().size(), false);
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const Op& op = graph.ops()[i];
    if (op.phase != Phase::Forward || op.inputs.empty() || runs_once[i]) continue;
    for (const ValueId input : op.inputs)
      if (input.valid() && changes[input.index])
        for (const ValueId output : op.outputs) changes[output.index] = true;
    for (const ValueId output : op.outputs) repeatable[output.index] = !changes[output.index];
  }
  return repeatable;
}

void recompute(Split& split, uint32_t stage, const OpTable& table) {
  Recomputed made = Recomputation(split.stages[stage], table).run();
  for (CutEdge& edge : split.cut_edges) {
    if (edge.from_stage == stage) edge.sent = made.value_of[edge.sent.index];
    if (edge.to_stage == stage) edge.received = made.value_of[edge.received.index];
  }
  split.stages[stage] = std::move(made.stage);
}

}  // namespace weft::dag
