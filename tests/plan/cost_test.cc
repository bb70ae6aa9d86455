#include "plan/cost.h"

#include <gtest/gtest.h>

#include "dag/op_table.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using dag::DType;
using dag::OpKind;

TEST(Cost, AMatrixProductIsItsFlopsAndItsBytes) {
  dag::GraphBuilder b(dag::op_table());
  const auto x = b.input("x", {DType::F32, {10, 20}}), w = b.input("w", {DType::F32, {20, 30}});
  b.output("y", b.add(OpKind::MatMul, {x, w}), dag::OutputRole::Prediction);
  const auto costs = group_costs(b.finish());
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_FALSE(costs[0].has_kernel);
  EXPECT_EQ(costs[2].matmul.value, 2 * 10 * 20 * 30);
  EXPECT_EQ(costs[2].convolution.value, 0);
  EXPECT_EQ(costs[2].moved.value, 4 * (200 + 600 + 300));
}

TEST(Cost, AGroupReadsAndWritesOnlyItsOutside) {
  dag::GraphBuilder b(dag::op_table());
  const auto x = b.input("x", {DType::F32, {100}});
  const auto e = b.add(OpKind::Exp, {x});
  const auto y = b.add(OpKind::Mul, {e, x});
  b.set_group(b.graph().value(e).producer, {0});
  b.set_group(b.graph().value(y).producer, {0});
  b.output("y", y, dag::OutputRole::Prediction);
  const auto costs = group_costs(b.finish());
  ASSERT_EQ(costs.size(), 2u);
  EXPECT_EQ(costs[1].moved.value, 800);
  EXPECT_EQ(costs[1].end - costs[1].begin, 2u);
}

TEST(Cost, AViewCostsNothingAndALookUpOnlyWhatItTakes) {
  dag::GraphBuilder b(dag::op_table());
  const auto table = b.input("table", {DType::F32, {1000, 8}}), rows = b.input("rows", {DType::I64, {2}});
  const auto taken = b.add(OpKind::Gather, {table, rows}, {{dag::Attr::Axis, int64_t{0}}});
  const auto view = b.add(OpKind::Reshape, {taken}, {{dag::Attr::Shape, dag::Shape{16}}});
  b.output("y", view, dag::OutputRole::Prediction);
  const auto costs = group_costs(b.finish());
  EXPECT_EQ(costs[2].moved.value, 2 * 8 * 4 * 2 + 2 * 8);
  EXPECT_FALSE(costs[3].has_kernel);
  EXPECT_EQ(seconds_of(costs[3], Rates{}), 0);
}

TEST(Cost, SecondsAreTheLongerOfComputingAndMoving) {
  GroupCost cost;
  cost.has_kernel = true;
  cost.matmul = {2'000'000'000};
  cost.moved = {1'000'000'000};
  EXPECT_DOUBLE_EQ(seconds_of(cost, {1e9, 1e9, 1e9, 0.5}), 2.5);
  EXPECT_DOUBLE_EQ(seconds_of(cost, {1e9, 1e9, 1e8, 0.5}), 10.5);
}

TEST(Cost, EveryOpIsInOneGroup) {
  for (const std::string& name : test::kAllGraphs) {
    const dag::Graph graph = test::training_graph(name);
    uint32_t at = 0;
    for (const GroupCost& cost : group_costs(graph)) {
      EXPECT_EQ(cost.begin, at);
      EXPECT_GT(cost.end, cost.begin);
      at = cost.end;
    }
    EXPECT_EQ(at, graph.ops().size()) << name;
  }
}

}  // namespace
}  // namespace weft::plan
