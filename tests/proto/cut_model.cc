#include <algorithm>

#include "dag/autodiff.h"
#include "tests/proto/samples.h"

namespace weft::test {
namespace {

using namespace proto;
using dag::OpId;
using dag::Phase;

// Forward ops cut where chance wants, then every fusion group pulled into its lowest stage.
std::vector<uint32_t> random_stages(const dag::Graph& graph, uint32_t stage_count, Rng& rng) {
  std::vector<uint32_t> stages(graph.ops().size(), 0), cuts;
  for (uint32_t s = 1; s < stage_count; ++s)
    cuts.push_back(static_cast<uint32_t>(rng.below(stages.size() / 3)));
  for (uint32_t i = 0; i < stages.size(); ++i)
    stages[i] = static_cast<uint32_t>(
        std::count_if(cuts.begin(), cuts.end(), [&](uint32_t cut) { return cut <= i; }));
  for (bool moved = true; moved;) {
    moved = false;
    const auto all = dag::stages_by_origin(graph, stages);
    std::map<uint32_t, uint32_t> lowest;
    for (uint32_t i = 0; i < all.size(); ++i)
      if (graph.ops()[i].group.valid()) {
        auto& low = lowest.emplace(graph.ops()[i].group.index, all[i]).first->second;
        low = std::min(low, all[i]);
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
  // Stages that came out empty close up.
  std::vector<uint32_t> all = dag::stages_by_origin(graph, stages), used = all;
  std::sort(used.begin(), used.end());
  used.erase(std::unique(used.begin(), used.end()), used.end());
  for (uint32_t& stage : all)
    stage = static_cast<uint32_t>(std::lower_bound(used.begin(), used.end(), stage) - used.begin());
  return all;
}

}  // namespace

CutModel cut_model(const Model& model, const dag::BackendTraits& traits, uint32_t stage_count, Rng& rng) {
  CutModel cut;
  cut.whole = dag::lower(dag::differentiate(model.graph, dag::op_table()).value(), dag::op_table(), traits);
  const auto stages = random_stages(cut.whole, stage_count, rng);
  cut.split =
      dag::split(cut.whole, stages, *std::max_element(stages.begin(), stages.end()) + 1, dag::op_table())
          .value();
  return cut;
}

StageProgram stage_program(const dag::Split& split, uint32_t stage) {
  const dag::StageGraph& piece = split.stages[stage];
  StageProgram program;
  program.graph = std::make_shared<const dag::Graph>(piece.graph);
  program.segment_of_op = piece.segment_of_op;
  program.segment_count = piece.segment_count;
  std::vector<bool> received(piece.graph.values().size(), false);
  for (uint32_t e = 0; e < split.cut_edges.size(); ++e) {
    const dag::CutEdge& edge = split.cut_edges[e];
    if (edge.to_stage == stage) {
      program.receives.push_back({e, edge.received, edge.from_stage});
      if (piece.graph.spec(edge.received).dtype == dag::DType::F32)
        program.receives.back().codec = *compress::parse("topk:0.01:fp16+int4");
      received[edge.received.index] = true;
    }
    if (edge.from_stage == stage) program.sends.push_back({e, edge.sent, edge.to_stage});
  }
  for (const dag::ValueId input : piece.graph.inputs())
    if (!received[input.index]) program.data_inputs.push_back(piece.graph.producer(input).name);
  return program;
}

}  // namespace weft::test
