#include "tests/plan/lawful.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dag/op_table.h"
#include "dag/split.h"

namespace weft::test {

void expect_lawful(const plan::PlanRequest& request, const plan::Plan& plan) {
  const dag::Graph& graph = *request.graph;
  ASSERT_EQ(plan.stage_of_op.size(), graph.ops().size());
  const auto stages = static_cast<uint32_t>(plan.stages.size());
  const auto split = dag::split(graph, plan.stage_of_op, stages, dag::op_table());
  ASSERT_TRUE(split.has_value()) << split.error().message;
  std::map<std::pair<uint32_t, uint32_t>, int64_t> bytes;
  for (const auto& edge : split->cut_edges)
    bytes[{edge.from_stage, edge.to_stage}] += graph.spec(edge.value).bytes().value;
  ASSERT_EQ(plan.links.size(), bytes.size());
  for (const plan::PlannedLink& link : plan.links)
    EXPECT_EQ(link.bytes.value, (bytes[{link.from_stage, link.to_stage}]));
  std::set<uint32_t> used;
  for (const plan::StagePlan& stage : plan.stages) {
    ASSERT_EQ(stage.devices.size(), 1u);
    EXPECT_TRUE(used.insert(stage.devices[0]).second) << "a device has two stages";
    EXPECT_LE(stage.memory, request.cluster.devices()[stage.devices[0]].memory);
    EXPECT_GE(stage.microbatches_in_flight, 1u);
    EXPECT_LE(stage.microbatches_in_flight, request.microbatches);
    EXPECT_GT(stage.memory.value, 0);
  }
  EXPECT_GT(plan.predicted_step.count(), 0);
  EXPECT_GT(plan.predicted_alone.count(), 0);
  EXPECT_GE(plan.explanation.size(), stages + 2);
}

}  // namespace weft::test
