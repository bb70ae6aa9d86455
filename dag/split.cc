#include "dag/split.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

namespace weft::dag {
namespace {

// Leaves that travel with the graph rather than over a link.
bool is_copied(const Graph& graph, const Op& op) {
  if (op.kind == OpKind::Constant) return true;
  if (op.kind != OpKind::Initializer) return false;
  const InitializerRole role = graph.find_initializer(op.attributes.get_string(Attr::Name))->role;
  return role == InitializerRole::Buffer || role == InitializerRole::Frozen;
}

// hops(op): the most border crossings on a path to it. Ops of a stage with more hops wait for values that
// ops with fewer hops, perhaps of the same stage, have sent out before.
std::vector<uint32_t> count_hops(const Graph& graph, std::span<const uint32_t> stage_of_op) {
  std::vector<uint32_t> hops(graph.ops().size(), 0);
  // Groups run as one: all members take the largest. One pass in order suffices, because lowering
  // put the members of a group next to each other.
  for (uint32_t begin = 0; begin < graph.ops().size();) {
    uint32_t end = begin + 1;
    const GroupId group = graph.ops()[begin].group;
    while (group.valid() && end < graph.ops().size() && graph.ops()[end].group == group) ++end;
    uint32_t most = 0;
    for (uint32_t i = begin; i < end; ++i)
      for (const ValueId input : graph.ops()[i].inputs) {
        if (!input.valid()) continue;
        const uint32_t from = graph.value(input).producer.index;
        if (from >= begin || is_copied(graph, graph.ops()[from])) continue;
        most = std::max(most, hops[from] + (stage_of_op[from] != stage_of_op[i] ? 1u : 0u));
      }
    for (uint32_t i = begin; i < end; ++i) hops[i] = most;
    begin = end;
  }
  return hops;
}

Status check_groups(const Graph& graph, std::span<const uint32_t> stage_of_op) {
  std::map<uint32_t, uint32_t> stage_of_group;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const GroupId group = graph.ops()[i].group;
    if (!group.valid()) continue;
    const auto [at, fresh] = stage_of_group.emplace(group.index, stage_of_op[i]);
    if (!fresh && at->second != stage_of_op[i])
      return fail(ErrorCode::InvalidArgument, "the cut between stages " + std::to_string(at->second) +
                                                  " and " + std::to_string(stage_of_op[i]) +
                                                  " goes through fusion group " +
                                                  std::to_string(group.index));
  }
  return {};
}

class StageBuilder {
 public:
  StageBuilder(const Graph& whole, const OpTable& table) : whole_(whole), builder_(table) {}

  ValueId local(ValueId value) const {
    const auto at = values_.find(value.index);
    return at == values_.end() ? ValueId{} : at->second;
  }

  void receive(ValueId value) {
    builder_.set_phase(whole_.producer(value).phase);
    builder_.set_origin(OpId{});
    const ValueId input = builder_.input("edge." + std::to_string(value.index), whole_.spec(value));
    builder_.set_layout(input, whole_.value(value).layout);
    values_[value.index] = input;
  }

  void copy(OpId id) {
    const Op& op = whole_.op(id);
    builder_.set_phase(op.phase);
    const auto origin = ops_.find(op.origin.index);
    builder_.set_origin(op.origin == id || origin == ops_.end() ? OpId{} : origin->second);
    std::vector<ValueId> outputs;
    if (op.kind == OpKind::Input) {
      outputs = {builder_.input(op.attributes.get_string(Attr::Name), whole_.spec(op.outputs[0]))};
    } else if (op.kind == OpKind::Initializer) {
      const Initializer* initializer = whole_.find_initializer(op.attributes.get_string(Attr::Name));
      outputs = {builder_.initializer(initializer->name, whole_.spec(op.outputs[0]), initializer->role)};
    } else if (op.kind == OpKind::Constant) {
      outputs = {builder_.constant(whole_.constant(op), op.name)};
    } else {
      std::vector<ValueId> inputs;
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
  }

  GraphBuilder& builder() { return builder_; }

 private:
  const Graph& whole_;
  GraphBuilder builder_;
  std::map<uint32_t, ValueId> values_;  // whole -> local
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
  for (const GraphOutput& output : graph.outputs()) {
    if (output.role != OutputRole::Gradient && output.role != OutputRole::StateUpdate) continue;
    const Initializer* initializer = graph.find_initializer(output.name);
    stages[graph.value(initializer->value).producer.index] = stages[graph.value(output.value).producer.index];
  }
  return stages;
}

namespace {
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

Result<Split> split(const Graph& graph, std::span<const uint32_t> stage_of_op, uint32_t stage_count,
                    const OpTable& table) {
  if (stage_of_op.size() != graph.ops().size())
    return fail(ErrorCode::InvalidArgument,
                "a split needs one stage for each of the " + std::to_string(graph.ops().size()) + " ops");
  std::vector<bool> used(stage_count, false);
  for (const uint32_t stage : stage_of_op) {
    if (stage >= stage_count)
      return fail(ErrorCode::InvalidArgument, "stage " + std::to_string(stage) + " is out of range");
    used[stage] = true;
  }
  for (uint32_t stage = 0; stage < stage_count; ++stage)
    if (!used[stage])
      return fail(ErrorCode::InvalidArgument, "stage " + std::to_string(stage) + " has no ops");
  WEFT_TRY_STATUS(check_groups(graph, stage_of_op));
  WEFT_TRY_STATUS(check_outputs(graph, stage_of_op));

  // A segment never mixes phases: Forward and Backward are separate tasks. Forward needs nothing of Backward.
  std::vector<uint32_t> hops = count_hops(graph, stage_of_op);
  for (uint32_t i = 0; i < hops.size(); ++i)
    if (graph.ops()[i].phase == Phase::Backward) hops[i] += static_cast<uint32_t>(graph.ops().size());
  Split result;
  std::vector<StageBuilder> builders;
  for (uint32_t stage = 0; stage < stage_count; ++stage) builders.emplace_back(graph, table);
  std::vector<std::vector<uint32_t>> hops_of_local(stage_count);
  std::vector<std::vector<OpId>> op_in_whole(stage_count);
  std::set<std::pair<uint32_t, uint32_t>> crossing;  // value, to_stage

  // A stage lists its ops segment by segment, which is the order in which they run: lifetimes are read off
  // it.
  std::vector<uint32_t> order(graph.ops().size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return hops[a] < hops[b]; });
  for (const uint32_t i : order) {
    const Op& op = graph.ops()[i];
    const uint32_t stage = stage_of_op[i];
    // A copied leaf appears in a stage with its first use there; one that nobody uses stays where it was put.
    for (const ValueId input : op.inputs) {
      if (!input.valid() || builders[stage].local(input).valid()) continue;
      const OpId producer = graph.value(input).producer;
      if (is_copied(graph, graph.op(producer))) {
        builders[stage].copy(producer);
      } else {
        builders[stage].receive(input);
        crossing.insert({input.index, stage});
      }
      hops_of_local[stage].push_back(hops[i]);
      op_in_whole[stage].push_back(producer);
    }
    if (is_copied(graph, op) && builders[stage].local(op.outputs[0]).valid()) continue;
    builders[stage].copy(OpId{i});
    hops_of_local[stage].push_back(hops[i]);
    op_in_whole[stage].push_back(OpId{i});
  }
  for (const GraphOutput& output : graph.outputs()) {
    const uint32_t stage = stage_of_op[graph.value(output.value).producer.index];
    builders[stage].builder().output(output.name, builders[stage].local(output.value), output.role);
  }
  for (const auto& [value, to] : crossing) {
    const uint32_t from = stage_of_op[graph.value({value}).producer.index];
    result.cut_edges.push_back(
        {{value}, from, to, builders[from].local({value}), builders[to].local({value})});
  }
  for (uint32_t stage = 0; stage < stage_count; ++stage) {
    std::vector<uint32_t> levels = hops_of_local[stage];
    std::sort(levels.begin(), levels.end());
    levels.erase(std::unique(levels.begin(), levels.end()), levels.end());
    StageGraph piece;
    for (const uint32_t hop : hops_of_local[stage])
      piece.segment_of_op.push_back(
          static_cast<uint32_t>(std::lower_bound(levels.begin(), levels.end(), hop) - levels.begin()));
    piece.segment_count = static_cast<uint32_t>(levels.size());
    piece.op_in_whole = std::move(op_in_whole[stage]);
    piece.graph = builders[stage].builder().finish();
    WEFT_CHECK(piece.segment_of_op.size() == piece.graph.ops().size());
    result.stages.push_back(std::move(piece));
  }
  return result;
}

}  // namespace weft::dag
