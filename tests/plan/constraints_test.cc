#include "plan/constraints.h"

#include <gtest/gtest.h>

#include "dag/op_table.h"
#include "plan/plan.h"
#include "plan/strategy.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using dag::Graph;

// The stage of every pinned op is its device's.
void expect_kept(const PlanRequest& request, const Plan& plan) {
  for (const Pin& pin : request.pins)
    for (const dag::OpId op : pin.of)
      EXPECT_EQ(plan.stages[plan.stage_of_op[op.index]].devices.front(), pin.device)
          << pin.ops << ", op " << op.index;
}
Pin pinned(const PinRule& rule, const PlanRequest& request) {
  const auto pin = resolve_pin(rule, *request.graph, request.cluster);
  EXPECT_TRUE(pin.has_value()) << (pin ? "" : pin.error().message);
  return pin.value_or(Pin{});
}
std::string refused(const PlanRequest& request) {
  const auto plan = make_plan(request);
  EXPECT_FALSE(plan.has_value());
  if (plan) return {};
  EXPECT_EQ(plan.error().code, ErrorCode::Infeasible);
  return plan.error().message;
}
void expect_says(const std::string& message, std::string_view what) {
  EXPECT_NE(message.find(what), std::string::npos) << message;
}
// A forward op of the middle of the graph, by the beginning of its name that no other has.
uint32_t middle_op(const Graph& graph) {
  std::vector<uint32_t> forward;
  for (uint32_t i = 0; i < graph.ops().size(); ++i) {
    const dag::Op& op = graph.ops()[i];
    if (op.phase == dag::Phase::Forward && op.kind != dag::OpKind::Input &&
        op.kind != dag::OpKind::Initializer && op.kind != dag::OpKind::Constant)
      forward.push_back(i);
  }
  return forward[forward.size() / 2];
}

class Pins : public testing::TestWithParam<std::string> {};

TEST_P(Pins, AreKeptOnRandomClusters) {
  int planned = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 31);
    const Graph graph = test::training_graph(GetParam(), seed);
    const auto devices = static_cast<uint32_t>(2 + rng.below(5));
    PlanRequest request{.graph = &graph,
                        .microbatches = static_cast<uint32_t>(1 + rng.below(6)),
                        .equal_bits = EqualBits::Ignore,
                        .cluster = test::random_cluster(rng, devices)};
    if (rng.below(2) == 0) request.stages = static_cast<uint32_t>(1 + rng.below(devices));
    const auto any = static_cast<uint32_t>(rng.below(devices));
    switch (rng.below(3)) {
      case 0:
        request.pins.push_back(pinned({"inputs", request.cluster.devices()[any].name}, request));
        break;
      case 1:
        request.pins.push_back(pinned({"labels", request.cluster.devices()[any].name}, request));
        break;
      default:
        request.pins.push_back({"some", {{middle_op(graph)}}, any});
    }
    for (const NamedStrategy& strategy : strategies()) {
      SCOPED_TRACE(strategy.name);
      request.strategy = strategy.name;
      const auto plan = make_plan(request);
      // Of a few fixed proposals none may fit into memory once the pinned device has its place.
      if (!plan && strategy.is_baseline) continue;
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      expect_kept(request, *plan);
      ++planned;
    }
  }
  EXPECT_GE(planned, 12);
}
INSTANTIATE_TEST_SUITE_P(Graphs, Pins, testing::ValuesIn(test::kAllGraphs),
                         [](const auto& each) { return each.param; });

TEST(Pins, ASlowDeviceThatWouldBeLeftOutIsUsed) {
  const Graph graph = test::training_graph("gpt");
  std::vector<DeviceView> devices = {test::device("gpu", 5000), test::device("laptop", 5)};
  PlanRequest request{.graph = &graph, .microbatches = 4, .cluster = ClusterView(devices)};
  ASSERT_EQ(make_plan(request)->stages.size(), 1u);
  request.pins = {pinned({"labels", "laptop"}, request)};
  const auto plan = make_plan(request);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->stages.size(), 2u) << "the laptop has the loss, and no more than need be";
  EXPECT_EQ(plan->stages[1].devices.front(), 1u);
  expect_kept(request, *plan);
  expect_says(plan->explanation.back(), "as pinned: labels on laptop");
  EXPECT_LT(plan->predicted_step,
            10 * make_plan({.graph = &graph, .microbatches = 4, .cluster = ClusterView({devices[1]})})
                     ->predicted_step);
}

// The loss reads no weight, by which an evaluation's ops find their stage.
TEST(Pins, AreKeptByAnEvaluation) {
  const Graph graph = test::training_graph("gpt"), other = test::evaluation_graph("gpt");
  const std::vector<DeviceView> devices = {test::device("gpu", 5000), test::device("laptop", 5)};
  PlanRequest request{.graph = &graph, .microbatches = 4, .cluster = ClusterView(devices)};
  const std::vector<PinRule> rules = {{"labels", "laptop"}, {"inputs", "gpu"}};
  for (const PinRule& rule : rules) request.pins.push_back(pinned(rule, request));
  const auto plan = make_plan(request);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  const std::vector<uint32_t> order = {plan->stages[0].devices[0], plan->stages[1].devices[0]};
  const auto floors = floors_of(rules, other, request.cluster, order);
  const auto followed = follow_stages(other, {}, graph, plan->stage_of_op, floors);
  for (const PinRule& rule : rules) {
    const auto pin = resolve_pin(rule, other, request.cluster);
    ASSERT_TRUE(pin.has_value()) << pin.error().message;
    EXPECT_TRUE(keeps_pins({&*pin, 1}, followed, order)) << rule.ops;
  }
}

TEST(Pins, DataAndLabelsOfTwoOwners) {
  const Graph graph = test::training_graph("residual");
  PlanRequest request{.graph = &graph, .microbatches = 4, .cluster = test::equal_devices(5)};
  request.pins = {pinned({"labels", "b"}, request), pinned({"inputs", "d"}, request)};
  for (const std::optional<uint32_t> stages : {std::optional<uint32_t>{}, std::optional<uint32_t>{4}}) {
    request.stages = stages;
    const auto plan = make_plan(request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    expect_kept(request, *plan);
    EXPECT_EQ(plan->stages.front().devices.front(), 3u);
    EXPECT_EQ(plan->stages.back().devices.front(), 1u);
  }
}

PlanRequest both_ends_on_c(const Graph& graph, double bytes_per_second) {
  PlanRequest request{
      .graph = &graph, .microbatches = 8, .cluster = test::equal_devices(3, bytes_per_second)};
  request.pins = {pinned({"labels", "c"}, request), pinned({"inputs", "c"}, request)};
  return request;
}

// Data and labels stay with their owner, and others take what is between.
TEST(Pins, BothEndsOnOnePeerMakeARing) {
  const Graph graph = test::chain(1, 12, /*batch=*/512);
  PlanRequest request = both_ends_on_c(graph, 1e10);
  const auto plan = make_plan(request);
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_GT(plan->stages.size(), 1u);
  EXPECT_EQ(plan->stages[0].devices.front(), 2u);
  expect_kept(request, *plan);
  EXPECT_LT(seconds(plan->predicted_step), 0.8 * seconds(plan->predicted_alone));
  const auto says_both = [](const std::string& line) {
    return line.find("stage 1 also has the last ops") != std::string::npos;
  };
  EXPECT_TRUE(std::any_of(plan->explanation.begin(), plan->explanation.end(), says_both));

  // Another owner's op between them, and a number of stages.
  request.pins.push_back({"some", {{middle_op(graph)}}, 0});
  for (const std::optional<uint32_t> stages : {std::optional<uint32_t>{}, std::optional<uint32_t>{3}}) {
    request.stages = stages;
    const auto among = make_plan(request);
    ASSERT_TRUE(among.has_value()) << among.error().message;
    expect_kept(request, *among);
  }
}

TEST(Pins, BothEndsOnOnePeerLeaveOneStageWhereLinksAreSlow) {
  const Graph graph = test::chain(1, 6);
  const auto plan = make_plan(both_ends_on_c(graph, 1e5));
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->stages.size(), 1u);
  EXPECT_EQ(plan->stages[0].devices.front(), 2u);
}

TEST(Pins, WhatCannotBeKeptSaysWhy) {
  const Graph graph = test::training_graph("residual");
  PlanRequest request{.graph = &graph, .microbatches = 2, .stages = 1, .cluster = test::equal_devices(3)};
  request.pins = {pinned({"inputs", "a"}, request), pinned({"labels", "b"}, request)};
  expect_says(refused(request), "pinned to 2 peers (a, b), stages: 1");
  request.stages.reset();
  request.pins.push_back(pinned({"labels", "a"}, request));
  expect_says(refused(request), "between what is pinned to a lies what is pinned to b");

  std::vector<DeviceView> devices = {test::device("x", 50, "west", "avx2"),
                                     test::device("y", 50, "west", "avx512")};
  PlanRequest mixed{
      .graph = &graph, .microbatches = 2, .equal_bits = EqualBits::Require, .cluster = ClusterView(devices)};
  mixed.pins = {pinned({"inputs", "x"}, mixed), pinned({"labels", "y"}, mixed)};
  expect_says(refused(mixed), "several fingerprints (x, y)");
  mixed.equal_bits = EqualBits::Prefer;
  EXPECT_TRUE(make_plan(mixed).has_value());

  devices[1].memory = {1024};
  mixed.cluster = ClusterView(devices);
  const std::string message = refused(mixed);
  expect_says(message, "does not fit");
  expect_says(message, "inputs on x, labels on y");
}

TEST(Pins, AreFoundByNameOrBeginning) {
  const Graph graph = test::training_graph("gpt");
  const ClusterView cluster = test::equal_devices(2);
  std::string name;
  for (const dag::Op& op : graph.ops())
    if (op.kind == dag::OpKind::MatMul && op.phase == dag::Phase::Forward && name.empty()) name = op.name;
  ASSERT_GT(name.size(), 3u);
  const auto whole = resolve_pin({name, "b"}, graph, cluster);
  ASSERT_TRUE(whole.has_value()) << whole.error().message;
  EXPECT_EQ(whole->device, 1u);
  for (const dag::OpId op : whole->of) EXPECT_EQ(graph.op(op).name, name);
  const auto beginning = resolve_pin({name.substr(0, 3), "b"}, graph, cluster);
  ASSERT_TRUE(beginning.has_value());
  EXPECT_GT(beginning->of.size(), whole->of.size());

  const auto unknown = resolve_pin({"no such op", "b"}, graph, cluster);
  EXPECT_EQ(unknown.error().code, ErrorCode::InvalidArgument);
  expect_says(unknown.error().message, "no op of the model is called 'no such op'");
  const auto nobody = resolve_pin({name, "z"}, graph, cluster);
  EXPECT_EQ(nobody.error().code, ErrorCode::Infeasible);
  expect_says(nobody.error().message, "pinned to 'z'");
  EXPECT_FALSE(resolve_pin({"labels", "b"}, test::lowered(test::chain(1, 3), false), cluster)
                   .value_or(Pin{})
                   .of.size() > 1);
}

TEST(Pins, LabelsAreTheInputsOfTheLossWhateverTheirNames) {
  dag::GraphBuilder builder(dag::op_table());
  const dag::TensorSpec spec{dag::DType::F32, {2, 3}};
  const dag::ValueId x = builder.input("loss.of.heat", spec);  // the model's own
  const dag::ValueId y = builder.input("y", spec, dag::InputRole::Loss);
  const dag::ValueId made = builder.add(dag::OpKind::Relu, {x});
  const dag::ValueId difference = builder.add(dag::OpKind::Sub, {made, y});
  builder.output("loss", difference, dag::OutputRole::Loss);
  const Graph graph = builder.finish();
  const ClusterView cluster = test::equal_devices(2);
  const auto labels = resolve_pin({"labels", "b"}, graph, cluster);
  ASSERT_TRUE(labels.has_value()) << labels.error().message;
  EXPECT_EQ(labels->of, std::vector{graph.value(difference).producer});
  const auto inputs = resolve_pin({"inputs", "b"}, graph, cluster);
  ASSERT_TRUE(inputs.has_value()) << inputs.error().message;
  EXPECT_EQ(inputs->of, std::vector{graph.value(made).producer});
}

}  // namespace
}  // namespace weft::plan
