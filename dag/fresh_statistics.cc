#include "dag/fresh_statistics.h"

#include <algorithm>
#include <set>
#include <span>

namespace weft::dag {
namespace {

constexpr uint32_t kNobody = UINT32_MAX;

// By value: which of the moving statistics it hangs on. Nothing where one hangs on two.
std::optional<std::vector<uint32_t>> statistic_of_values(const Graph& graph,
                                                         std::span<const FreshStatistic> statistics) {
  std::vector<uint32_t> hangs_on(graph.values().size(), kNobody);
  for (uint32_t s = 0; s < statistics.size(); ++s)
    hangs_on[graph.find_initializer(statistics[s].name)->value.index] = s;
  for (const Op& op : graph.ops())
    for (const ValueId input : op.inputs) {
      if (!input.valid() || hangs_on[input.index] == kNobody) continue;
      for (const ValueId output : op.outputs) {
        if (hangs_on[output.index] != kNobody && hangs_on[output.index] != hangs_on[input.index])
          return std::nullopt;
        hangs_on[output.index] = hangs_on[input.index];
      }
    }
  return hangs_on;
}

// Of what hangs on a statistic the ops that its new value needs. A recomputation makes others, which nobody
// reads.
void find_blending(const Graph& graph, const std::vector<uint32_t>& hangs_on,
                   std::vector<FreshStatistic>& statistics) {
  std::vector<bool> needed(graph.values().size());
  for (const GraphOutput& output : graph.outputs())
    if (output.role == OutputRole::StateUpdate) needed[output.value.index] = true;
  for (uint32_t i = static_cast<uint32_t>(graph.ops().size()); i-- > 0;) {
    const Op& op = graph.op(OpId{i});
    const auto of = std::find_if(op.outputs.begin(), op.outputs.end(),
                                 [&](ValueId output) { return needed[output.index]; });
    if (op.kind == OpKind::Initializer || of == op.outputs.end() || hangs_on[of->index] == kNobody) continue;
    statistics[hangs_on[of->index]].blending.push_back(OpId{i});
    for (const ValueId input : op.inputs)
      if (input.valid() && hangs_on[input.index] != kNobody) needed[input.index] = true;
  }
  for (FreshStatistic& statistic : statistics)
    std::reverse(statistic.blending.begin(), statistic.blending.end());
}

// What its blending reads beside the statistic and constants. False: not of a microbatch.
bool find_values(const Graph& graph, const std::vector<uint32_t>& hangs_on, FreshStatistic& statistic) {
  std::set<uint32_t> values;
  for (const OpId op : statistic.blending)
    for (const ValueId input : graph.op(op).inputs) {
      if (!input.valid() || hangs_on[input.index] != kNobody) continue;
      const OpKind made_by = graph.producer(input).kind;
      if (made_by == OpKind::Initializer) return false;
      if (made_by != OpKind::Constant) values.insert(input.index);
    }
  for (const uint32_t index : values) {
    const TensorSpec& spec = graph.spec(ValueId{index});
    if (statistic.values.empty()) statistic.dtype = spec.dtype;
    if (spec.dtype != statistic.dtype) return false;
    statistic.values.push_back(ValueId{index});
    statistic.count += spec.element_count();
  }
  return statistic.count > 0;
}

// Whether an output shows a value that hangs on a statistic, other than as its update.
bool is_shown(const GraphOutput& output, const std::vector<uint32_t>& hangs_on,
              std::span<const FreshStatistic> statistics) {
  const uint32_t of = hangs_on[output.value.index];
  if (output.role == OutputRole::StateUpdate) return of == kNobody || statistics[of].name != output.name;
  return of != kNobody;
}

}  // namespace

std::optional<std::vector<FreshStatistic>> fresh_statistics(const Graph& graph) {
  std::vector<FreshStatistic> statistics;
  for (const GraphOutput& output : graph.outputs())
    if (output.role == OutputRole::StateUpdate)
      statistics.push_back({.name = output.name, .values = {}, .blending = {}});
  if (statistics.empty()) return statistics;
  const auto hangs_on = statistic_of_values(graph, statistics);
  if (!hangs_on) return std::nullopt;
  for (const GraphOutput& output : graph.outputs())
    if (is_shown(output, *hangs_on, statistics)) return std::nullopt;
  find_blending(graph, *hangs_on, statistics);
  for (FreshStatistic& statistic : statistics)
    if (!find_values(graph, *hangs_on, statistic)) return std::nullopt;
  return statistics;
}

std::string fresh_input(ValueId value) { return "fresh" + std::to_string(value.index); }

Graph blending_graph(const Graph& graph, const std::vector<FreshStatistic>& statistics,
                     const OpTable& table) {
  GraphCopy copy(graph, table);
  std::vector<OpId> blending;
  std::set<std::string_view> names;
  for (const FreshStatistic& statistic : statistics) {
    const Initializer& initializer = *graph.find_initializer(statistic.name);
    copy.copy(graph.value(initializer.value).producer);
    for (const ValueId value : statistic.values)
      if (!copy.mapped(value).valid())
        copy.map(value, copy.builder().input(fresh_input(value), graph.spec(value)));
    blending.insert(blending.end(), statistic.blending.begin(), statistic.blending.end());
    names.insert(statistic.name);
  }
  std::sort(blending.begin(), blending.end(), [](OpId a, OpId b) { return a.index < b.index; });
  for (const OpId op : blending) {
    for (const ValueId input : graph.op(op).inputs)
      if (input.valid() && !copy.mapped(input).valid()) copy.copy(graph.value(input).producer);
    copy.copy(op);
  }
  for (const GraphOutput& output : graph.outputs())
    if (output.role == OutputRole::StateUpdate && names.contains(output.name))
      copy.builder().output(output.name, copy.mapped(output.value), output.role);
  return copy.finish();
}

}  // namespace weft::dag
