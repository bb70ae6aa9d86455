#include "plan/follow.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

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

// The order in which a microbatch comes by the stages: by one again and again, where it has pieces in several
// places. A turn is one visit; a value's turn is never behind that of what is made from it. Where the stages
// are a row, turns are stages.
class Turns {
 public:
  Turns(const Graph& graph, const std::vector<uint32_t>& stage_of_op) {
    order_visits(graph, stage_of_op, visits(graph, stage_of_op));
    const auto users = graph.users();
    for (const auto& initializer : graph.initializers()) {
      const uint32_t home = stage_of_op[graph.value(initializer.value).producer.index];
      Readers& of = readers_[initializer.name];
      for (const dag::OpId reader : users[initializer.value.index])
        if (graph.op(reader).phase == dag::Phase::Forward) of.turns.push_back(of_op_[reader.index]);
      std::sort(of.turns.begin(), of.turns.end());
      const auto at = std::find_if(of.turns.begin(), of.turns.end(),
                                   [&](uint32_t turn) { return stage_of_turn_[turn] == home; });
      of.home = at == of.turns.end() ? first_of(home) : *at;
      if (of.turns.empty()) of.turns = {of.home};
    }
  }

  // Where the initializer lies. Nothing: the graph has no such initializer.
  std::optional<uint32_t> home(std::string_view name) const {
    const auto at = readers_.find(name);
    return at == readers_.end() ? std::nullopt : std::optional(at->second.home);
  }
  // The first in which it is read by what comes no earlier than `earliest`; else the last.
  std::optional<uint32_t> reader(std::string_view name, uint32_t earliest) const {
    const auto at = readers_.find(name);
    if (at == readers_.end()) return std::nullopt;
    const auto& turns = at->second.turns;
    const auto first = std::lower_bound(turns.begin(), turns.end(), earliest);
    return first == turns.end() ? turns.back() : *first;
  }
  // The first of the stage.
  uint32_t first_of(uint32_t stage) const {
    const auto at = std::find(stage_of_turn_.begin(), stage_of_turn_.end(), stage);
    return static_cast<uint32_t>(at == stage_of_turn_.end() ? 0 : at - stage_of_turn_.begin());
  }
  uint32_t stage(uint32_t turn) const { return stage_of_turn_[turn]; }

 private:
  struct Readers {
    uint32_t home = 0;
    std::vector<uint32_t> turns;  // of what reads it forward, ascending
  };
  using Visit = std::pair<uint32_t, uint32_t>;  // a stage; the most borders on a way to what it makes then

  static bool runs_forward(const Graph& graph, uint32_t op) {
    return graph.ops()[op].phase == dag::Phase::Forward && !graph.ops()[op].inputs.empty();
  }
  // `visit(from, to)` for each value that one forward op makes and another reads; ops ascending.
  template <typename F>
  static void each_edge(const Graph& graph, const F& visit) {
    for (uint32_t i = 0; i < graph.ops().size(); ++i)
      if (runs_forward(graph, i))
        for (const ValueId input : graph.ops()[i].inputs)
          if (input.valid() && runs_forward(graph, graph.value(input).producer.index))
            visit(graph.value(input).producer.index, i);
  }
  // By op.
  static std::vector<Visit> visits(const Graph& graph, const std::vector<uint32_t>& stage_of_op) {
    std::vector<Visit> of_op;
    of_op.reserve(stage_of_op.size());
    for (const uint32_t stage : stage_of_op) of_op.emplace_back(stage, 0);
    each_edge(graph, [&](uint32_t from, uint32_t to) {
      const uint32_t border = of_op[from].first == of_op[to].first ? 0 : 1;
      of_op[to].second = std::max(of_op[to].second, of_op[from].second + border);
    });
    return of_op;
  }
  // Each after those that it waits for; of those that could be next the first stage's.
  void order_visits(const Graph& graph, const std::vector<uint32_t>& stage_of_op,
                    const std::vector<Visit>& visit_of_op) {
    std::map<Visit, uint32_t> waits;
    for (const uint32_t stage : stage_of_op) waits.try_emplace({stage, 0}, 0);
    std::set<std::pair<Visit, Visit>> edges;
    each_edge(graph, [&](uint32_t from, uint32_t to) {
      waits.try_emplace(visit_of_op[to], 0);
      if (visit_of_op[from] != visit_of_op[to]) edges.emplace(visit_of_op[from], visit_of_op[to]);
    });
    for (const auto& [from, to] : edges) ++waits[to];
    std::set<Visit> ready;
    for (const auto& [visit, count] : waits)
      if (count == 0) ready.insert(visit);
    std::map<Visit, uint32_t> turn;
    while (!ready.empty()) {
      const Visit visit = ready.extract(ready.begin()).value();
      turn[visit] = static_cast<uint32_t>(stage_of_turn_.size());
      stage_of_turn_.push_back(visit.first);
      for (auto edge = edges.lower_bound({visit, {0, 0}}); edge != edges.end() && edge->first == visit;
           ++edge)
        if (--waits[edge->second] == 0) ready.insert(edge->second);
    }
    WEFT_CHECK(turn.size() == waits.size());  // the most borders only grow along values
    for (uint32_t i = 0; i < visit_of_op.size(); ++i)
      of_op_.push_back(runs_forward(graph, i) ? turn.at(visit_of_op[i]) : 0);
  }

  std::vector<uint32_t> of_op_;  // of leaves and backward ops nothing
  std::vector<uint32_t> stage_of_turn_;
  std::unordered_map<std::string_view, Readers> readers_;
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
        if (input.valid() && !initializer.contains(input.index))
          changed |= raise(head[i], turn[graph.value(input).producer.index]);
      for (const ValueId input : graph.ops()[i].inputs)
        if (const auto name = initializer.find(input.index); input.valid() && name != initializer.end()) {
          const uint32_t earliest = turn[head[i]] == kUnknown ? 0 : turn[head[i]];
          changed |= raise(head[i], turns.reader(name->second, earliest).value_or(kUnknown));
        }
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
    stages[other.value(initializer.value).producer.index] = turns.home(initializer.name).value_or(kUnknown);
  const std::vector<uint32_t> head = heads_of(other, classes);
  for (const StageFloor& floor : floors) {
    uint32_t& stage = stages[head[floor.op.index]];
    const uint32_t turn = turns.first_of(floor.stage);
    stage = stage == kUnknown ? turn : std::max(stage, turn);
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
