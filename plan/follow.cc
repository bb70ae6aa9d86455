#include "plan/follow.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "base/check.h"

namespace weft::plan {

using dag::Graph;
using dag::ValueId;

namespace {

constexpr uint32_t kUnknown = std::numeric_limits<uint32_t>::max();

// By op: the first op that it shares a group with, in some class, or through others that do.
std::vector<uint32_t> heads_of(const Graph& graph,
                               std::span<const std::shared_ptr<const dag::Lowered>> classes) {
  std::vector<uint32_t> parent(graph.ops().size());
  std::iota(parent.begin(), parent.end(), 0u);
  const auto find = [&](uint32_t i) {
    while (parent[i] != i) i = parent[i] = parent[parent[i]];
    return i;
  };
  const auto join_groups = [&](const Graph& runs, auto source) {
    const auto ops = runs.ops();
    for (uint32_t i = 1; i < ops.size(); ++i) {
      if (!ops[i].group.valid() || ops[i - 1].group != ops[i].group) continue;
      const uint32_t a = find(source(i - 1)), b = find(source(i));
      parent[std::max(a, b)] = std::min(a, b);
    }
  };
  for (const auto& lowered : classes)
    join_groups(lowered->graph, [&](uint32_t i) { return lowered->source_op[i].index; });
  if (classes.empty()) join_groups(graph, [](uint32_t i) { return i; });
  for (uint32_t i = 0; i < parent.size(); ++i) parent[i] = find(i);
  return parent;
}

// Stages as turns in the order in which a microbatch comes by them: what the first stage of a ring does with
// what others made is a turn of its own, behind the last one's.
class Turns {
 public:
  Turns(const Graph& graph, const std::vector<uint32_t>& stage_of_op)
      : again_(1 + *std::max_element(stage_of_op.begin(), stage_of_op.end())), of_op_(stage_of_op) {
    for (uint32_t i = 0; i < of_op_.size(); ++i)
      if (of_op_[i] == 0 && graph.ops()[i].phase == dag::Phase::Forward && reads_of_others(graph, i))
        of_op_[i] = again_;
    const auto users = graph.users();
    for (const auto& initializer : graph.initializers()) {
      const uint32_t home = of_op_[graph.value(initializer.value).producer.index];
      std::vector<uint32_t>& turns = of_initializer_[initializer.name];
      for (const dag::OpId reader : users[initializer.value.index])
        if (graph.op(reader).phase == dag::Phase::Forward) turns.push_back(of_op_[reader.index]);
      std::sort(turns.begin(), turns.end());
      if (home != 0 || turns.empty() || turns.back() != again_) turns = {home};
    }
  }

  // The first in which the initializer is read by what comes no earlier than `earliest`; else the last.
  // Nothing: the graph has no such initializer.
  std::optional<uint32_t> of_initializer(std::string_view name, uint32_t earliest) const {
    const auto at = of_initializer_.find(name);
    if (at == of_initializer_.end()) return std::nullopt;
    const auto first = std::lower_bound(at->second.begin(), at->second.end(), earliest);
    return first == at->second.end() ? at->second.back() : *first;
  }
  uint32_t stage(uint32_t turn) const { return turn == again_ ? 0 : turn; }

 private:
  bool reads_of_others(const Graph& graph, uint32_t op) const {
    const auto& inputs = graph.ops()[op].inputs;
    return std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
      return input.valid() && !graph.producer(input).inputs.empty() &&
             of_op_[graph.value(input).producer.index] > 0;
    });
  }

  uint32_t again_;
  std::vector<uint32_t> of_op_;
  std::unordered_map<std::string_view, std::vector<uint32_t>> of_initializer_;  // ascending
};

// By value.
std::unordered_map<uint32_t, std::string_view> initializer_names(const Graph& graph) {
  std::unordered_map<uint32_t, std::string_view> names;
  for (const auto& initializer : graph.initializers()) names[initializer.value.index] = initializer.name;
  return names;
}

// Turns only grow along the values: of what an op reads the latest, for all that run as one with it. What
// comes of inputs and constants alone stays unknown.
void follow_values(const Graph& graph, const Turns& turns, const std::vector<uint32_t>& head,
                   std::vector<uint32_t>& turn) {
  const auto raise = [&](uint32_t op, uint32_t to) {
    if (to == kUnknown || (turn[op] != kUnknown && turn[op] >= to)) return false;
    turn[op] = to;
    return true;
  };
  const auto initializer = initializer_names(graph);
  for (bool changed = true; changed;) {  // once more for each group whose members others stand between
    changed = false;
    for (uint32_t i = 0; i < head.size(); ++i) {
      if (graph.ops()[i].inputs.empty()) continue;
      for (const ValueId input : graph.ops()[i].inputs)
        if (input.valid()) changed |= raise(head[i], turn[graph.value(input).producer.index]);
      for (const ValueId input : graph.ops()[i].inputs)
        if (const auto name = initializer.find(input.index); input.valid() && name != initializer.end())
          changed |= raise(head[i], turns.of_initializer(name->second, turn[head[i]]).value_or(kUnknown));
    }
    for (uint32_t i = 0; i < head.size(); ++i)
      if (!graph.ops()[i].inputs.empty()) changed |= raise(i, turn[head[i]]);
  }
}

}  // namespace

std::vector<uint32_t> follow_stages(const Graph& other,
                                    std::span<const std::shared_ptr<const dag::Lowered>> classes,
                                    const Graph& graph, const std::vector<uint32_t>& stage_of_op,
                                    std::span<const StageFloor> floors) {
  WEFT_CHECK(stage_of_op.size() == graph.ops().size());
  const Turns turns(graph, stage_of_op);
  const auto count = static_cast<uint32_t>(other.ops().size());
  std::vector<uint32_t> stages(count, kUnknown);
  for (const auto& initializer : other.initializers())
    stages[other.value(initializer.value).producer.index] =
        turns.of_initializer(initializer.name, 0).value_or(kUnknown);
  const std::vector<uint32_t> head = heads_of(other, classes);
  for (const StageFloor& floor : floors) {
    uint32_t& stage = stages[head[floor.op.index]];
    stage = stage == kUnknown ? floor.stage : std::max(stage, floor.stage);
  }
  follow_values(other, turns, head, stages);

  // The rest lies where it is first read: from the last op to the first, groups at once.
  const auto users = other.users();
  std::vector<std::vector<uint32_t>> members(count);
  for (uint32_t i = 0; i < count; ++i) members[head[i]].push_back(i);
  for (uint32_t i = count; i-- > 0;) {
    if (members[i].empty() || stages[i] != kUnknown) continue;
    uint32_t first = kUnknown;
    for (const uint32_t member : members[i])
      for (const ValueId output : other.ops()[member].outputs)
        for (const dag::OpId reader : users[output.index]) first = std::min(first, stages[reader.index]);
    for (const uint32_t member : members[i]) stages[member] = first == kUnknown ? 0 : first;
  }
  for (uint32_t& stage : stages) stage = turns.stage(stage);
  return stages;
}

}  // namespace weft::plan
