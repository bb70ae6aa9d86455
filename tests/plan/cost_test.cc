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

Rates measured_rates() {
  Rates rates{1e10, 1e10, 1e9, 1e-6};
  rates.units.fill({5e9, 1e10, 4e9, 1e9});
  return rates;
}

TEST(Cost, WithRatesByUnitComputingAndMovingAddUp) {
  GroupCost cost;
  cost.has_kernel = true;
  cost.unit = Unit::MatMul;
  cost.matmul = {10'000'000'000};
  cost.moved = {1 << 19};  // at the rate of what is small
  EXPECT_NEAR(seconds_of(cost, measured_rates()), 1 + (1 << 19) / 4e9 + 1e-6, 1e-12);
  cost.small = 1;
  EXPECT_NEAR(seconds_of(cost, measured_rates()), 2 + (1 << 19) / 4e9 + 1e-6, 1e-12);
}

TEST(Cost, SecondsGrowWithWorkAndBytesAndNeverJump) {
  Rates rates = measured_rates();
  for (const double small : {1e8, 4e9}) {  // even where what is small is said to go slower
    rates.of(Unit::Elementwise).small_bytes_per_second = small;
    GroupCost cost;
    cost.has_kernel = true;
    double before = seconds_of(cost, rates);
    for (double bytes = 1; bytes < 1e10; bytes *= 1.01) {
      cost.moved = {static_cast<int64_t>(bytes)};
      const double now = seconds_of(cost, rates);
      EXPECT_GE(now, before);
      EXPECT_LE(now - before, 0.05 * now + 1e-7) << bytes;
      before = now;
    }
    for (FlopCount GroupCost::*work : {&GroupCost::matmul, &GroupCost::convolution, &GroupCost::arithmetic}) {
      GroupCost more = cost;
      (more.*work).value += 1'000'000;
      EXPECT_GT(seconds_of(more, rates), seconds_of(cost, rates));
    }
  }
}

TEST(Cost, ConvolutionsAreToldApart) {
  const auto cost_of = [](OpKind kind, std::vector<dag::Shape> operands, int64_t groups, dag::Shape shape,
                          int64_t stride = 1) {
    dag::GraphBuilder b(dag::op_table());
    std::vector<dag::ValueId> inputs;
    for (size_t i = 0; i < operands.size(); ++i)
      inputs.push_back(b.input("x" + std::to_string(i), {DType::F32, operands[i]}));
    const int64_t kernel = operands.size() > 1 && operands[1].back() % 7 != 0 ? operands[1].back() : 1;
    const int64_t pad = kernel / 2;
    dag::Attributes attributes{{dag::Attr::Strides, dag::Ints{stride, stride}},
                               {dag::Attr::Dilations, dag::Ints{1, 1}},
                               {dag::Attr::Pads, dag::Ints{pad, pad, pad, pad}},
                               {dag::Attr::Groups, groups}};
    if (!shape.empty()) attributes.set(dag::Attr::Shape, shape);
    b.output("y", b.add(kind, inputs, attributes), dag::OutputRole::Prediction);
    return group_costs(b.finish()).back();
  };
  const GroupCost dense = cost_of(OpKind::Conv, {{2, 16, 28, 28}, {32, 16, 3, 3}}, 1, {});
  EXPECT_EQ(dense.unit, Unit::Convolution);
  EXPECT_EQ(dense.small, 0);
  const GroupCost small = cost_of(OpKind::Conv, {{4, 16, 7, 7}, {32, 16, 3, 3}}, 1, {});
  EXPECT_DOUBLE_EQ(small.small, 1);
  EXPECT_GT(cost_of(OpKind::Conv, {{1, 16, 7, 7}, {32, 16, 3, 3}}, 1, {}).small, 1) << "a microbatch of one";
  EXPECT_EQ(cost_of(OpKind::Conv, {{64, 16, 7, 7}, {32, 16, 3, 3}}, 1, {}).small, 0);
  const GroupCost depthwise = cost_of(OpKind::Conv, {{64, 16, 7, 7}, {16, 1, 3, 3}}, 16, {});
  EXPECT_DOUBLE_EQ(depthwise.small, 1) << "by image";
  EXPECT_DOUBLE_EQ(depthwise.spread, 1);
  EXPECT_DOUBLE_EQ(cost_of(OpKind::Conv, {{2, 16, 8, 8}, {16, 1, 3, 3}}, 16, {}, 2).spread, 2.5)
      << "four read for one written";
  EXPECT_LT(cost_of(OpKind::Conv, {{2, 16, 8, 8}, {16, 1, 5, 5}}, 16, {}, 2).spread, 2) << "more taps";
  EXPECT_EQ(cost_of(OpKind::Conv, {{2, 16, 28, 28}, {32, 16, 1, 1}}, 1, {}).unit, Unit::Pointwise);
  EXPECT_EQ(cost_of(OpKind::Conv, {{2, 16, 28, 28}, {16, 1, 3, 3}}, 16, {}).unit, Unit::Depthwise);
  EXPECT_EQ(cost_of(OpKind::ConvGradWeight, {{2, 16, 7, 7}, {2, 32, 7, 7}}, 1, {32, 16, 1, 1}).unit,
            Unit::Pointwise);
}

TEST(Cost, AFunctionCostsMoreThanAnAddition) {
  const auto arithmetic = [](OpKind kind) {
    dag::GraphBuilder b(dag::op_table());
    b.output("y", b.add(kind, {b.input("x", {DType::F32, {100}})}), dag::OutputRole::Prediction);
    return group_costs(b.finish()).back().arithmetic.value;
  };
  EXPECT_EQ(arithmetic(OpKind::Neg), 100);
  EXPECT_GT(arithmetic(OpKind::Exp), 400);
  EXPECT_GT(arithmetic(OpKind::Tanh), arithmetic(OpKind::Exp));
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
