#include "plan/follow.h"

#include <algorithm>
#include <limits>
#include <numeric>
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

// Stages only grow along the values: of what an op reads the latest, for all that run as one with it. What
// comes of inputs and constants alone stays unknown.
void follow_values(const Graph& graph, const std::vector<uint32_t>& head, std::vector<uint32_t>& stage) {
  const auto raise = [&](uint32_t op, uint32_t to) {
    if (to == kUnknown || (stage[op] != kUnknown && stage[op] >= to)) return false;
    stage[op] = to;
    return true;
  };
  for (bool changed = true; changed;) {  // once more for each group whose members others stand between
    changed = false;
    for (uint32_t i = 0; i < head.size(); ++i) {
      if (graph.ops()[i].inputs.empty()) continue;
      for (const ValueId input : graph.ops()[i].inputs)
        if (input.valid()) changed |= raise(head[i], stage[graph.value(input).producer.index]);
    }
    for (uint32_t i = 0; i < head.size(); ++i)
      if (!graph.ops()[i].inputs.empty()) changed |= raise(i, stage[head[i]]);
  }
}

}  // namespace

std::vector<uint32_t> follow_stages(const Graph& other,
                                    std::span<const std::shared_ptr<const dag::Lowered>> classes,
                                    const Graph& graph, const std::vector<uint32_t>& stage_of_op,
                                    std::span<const StageFloor> floors) {
  WEFT_CHECK(stage_of_op.size() == graph.ops().size());
  std::unordered_map<std::string_view, uint32_t> stage_of_initializer;
  for (const auto& initializer : graph.initializers())
    stage_of_initializer[initializer.name] = stage_of_op[graph.value(initializer.value).producer.index];

  const auto count = static_cast<uint32_t>(other.ops().size());
  std::vector<uint32_t> stages(count, kUnknown);
  for (const auto& initializer : other.initializers())
    if (const auto at = stage_of_initializer.find(initializer.name); at != stage_of_initializer.end())
      stages[other.value(initializer.value).producer.index] = at->second;
  const std::vector<uint32_t> head = heads_of(other, classes);
  for (const StageFloor& floor : floors) {
    uint32_t& stage = stages[head[floor.op.index]];
    stage = stage == kUnknown ? floor.stage : std::max(stage, floor.stage);
  }
  follow_values(other, head, stages);

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
  return stages;
}

}  // namespace weft::plan
