#include "tests/support/cuts.h"

#include <algorithm>
#include <map>

#include "dag/op_table.h"
#include "dag/recompute.h"

namespace weft::test {

using dag::Graph;
using dag::OpId;
using dag::Phase;

std::vector<uint32_t> random_stages(const Graph& graph, uint32_t stage_count, Rng& rng, bool wrap_around) {
  std::vector<uint32_t> forward;
  for (uint32_t i = 0; i < graph.ops().size(); ++i)
    if (graph.ops()[i].phase == Phase::Forward) forward.push_back(i);
  std::vector<uint32_t> stages(graph.ops().size(), 0);
  const auto piece = static_cast<uint32_t>(forward.size() / stage_count);
  for (uint32_t k = 0; k < forward.size(); ++k) {
    const uint32_t shift = static_cast<uint32_t>(rng.below(std::max(1u, piece / 4)));
    stages[forward[k]] = std::min(stage_count - 1, (k + shift) / std::max(1u, piece));
  }
  if (wrap_around)  // the first stage owns the end as well: {embedding, head, loss}
    for (size_t k = forward.size() - forward.size() / 6; k < forward.size(); ++k) stages[forward[k]] = 0;
  for (bool moved = true; moved;) {
    moved = false;
    const auto all = dag::stages_by_origin(graph, stages);
    std::map<uint32_t, uint32_t> lowest;
    for (uint32_t i = 0; i < all.size(); ++i)
      if (graph.ops()[i].group.valid()) {
        auto [at, fresh] = lowest.emplace(graph.ops()[i].group.index, all[i]);
        at->second = std::min(at->second, all[i]);
      }
    for (uint32_t i = 0; i < all.size(); ++i) {
      if (!graph.ops()[i].group.valid() || all[i] == lowest[graph.ops()[i].group.index]) continue;
      OpId origin{i};
      while (graph.op(origin).phase == Phase::Backward && graph.op(origin).origin != origin)
        origin = graph.op(origin).origin;
      stages[origin.index] = lowest[graph.ops()[i].group.index];
      moved = true;
    }
  }
  return dag::stages_by_origin(graph, stages);
}

dag::Split recomputed(dag::Split split, const std::function<bool(uint32_t stage)>& which) {
  for (uint32_t s = 0; s < split.stages.size(); ++s)
    if (which(s)) dag::recompute(split, s, dag::op_table());
  return split;
}

}  // namespace weft::test
