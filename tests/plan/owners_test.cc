// At most a share of the parameters on one owner's machines.
#include "plan/owners.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "base/rng.h"
#include "dag/split.h"
#include "plan/follow.h"
#include "plan/plan.h"
#include "plan/strategy.h"
#include "tests/plan/graphs.h"
#include "tests/plan/lawful.h"

namespace weft::plan {
namespace {

bool is_counted(dag::InitializerRole role) {
  return role == dag::InitializerRole::Parameter || role == dag::InitializerRole::Frozen;
}

// By owner, what the pieces that their machines run hold and receive of the model.
std::map<std::string, double> shares_of(const dag::Graph& graph, const ClusterView& cluster,
                                        const Plan& plan) {
  const auto split =
      dag::split(graph, plan.stage_of_op, static_cast<uint32_t>(plan.stages.size()), dag::op_table());
  EXPECT_TRUE(split.has_value()) << split.error().message;
  std::map<std::string, std::set<std::string>> names;
  std::map<std::string, double> bytes;
  double all = 0;
  const auto owner = [&](size_t stage) { return cluster.devices()[plan.stages[stage].devices[0]].owner; };
  for (const dag::Initializer& one : graph.initializers()) {
    if (!is_counted(one.role)) continue;
    bytes[one.name] = static_cast<double>(graph.spec(one.value).bytes().value);
    all += bytes[one.name];
    for (size_t s = 0; s < split->stages.size(); ++s)
      if (split->stages[s].graph.find_initializer(one.name)) names[owner(s)].insert(one.name);
    for (const dag::CutEdge& edge : split->cut_edges)
      if (edge.value == one.value) names[owner(edge.to_stage)].insert(one.name);
  }
  std::map<std::string, double> shares;
  for (const auto& [who, has] : names)
    for (const std::string& name : has) shares[who] += bytes[name] / all;
  return shares;
}

PlanRequest request_of(const dag::Graph& graph, Rng& rng, uint32_t owners, double share) {
  std::vector<DeviceView> devices;
  for (uint32_t d = 0; d < 7; ++d) {
    devices.push_back(
        test::device(std::string(1, static_cast<char>('a' + d)), 20 * static_cast<double>(1 + rng.below(4))));
    devices.back().owner = "owner" + std::to_string(d < owners ? d : rng.below(owners));
  }
  return {.graph = &graph,
          .microbatches = 8,
          .optimizer_slots = 1,
          .cluster = ClusterView(devices),
          .owner_share_max = share};
}

void expect_shares(const PlanRequest& request, const Plan& plan) {
  test::expect_lawful(request, plan);
  for (const auto& [owner, has] : shares_of(*request.graph, request.cluster, plan))
    EXPECT_LE(has, request.owner_share_max + 1e-6) << owner;
  EXPECT_TRUE(std::any_of(plan.explanation.begin(), plan.explanation.end(), [](const auto& line) {
    return line.find("of the parameters on one owner's machines: owner") != std::string::npos;
  }));
}

TEST(Owners, NobodyHoldsMoreThanTheShare) {
  for (uint64_t seed = 1; seed <= 8; ++seed)
    for (const double share : {0.75, 0.6, 0.45}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", share " + std::to_string(share));
      Rng rng(seed, 9);
      const dag::Graph graph = seed % 2 ? test::chain(seed, 16) : test::branches(seed, 16);
      const PlanRequest request = request_of(graph, rng, 3 + static_cast<uint32_t>(rng.below(3)), share);
      const auto plan = make_plan(request);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      expect_shares(request, *plan);
    }
}

TEST(Owners, RealModelsAreSharedOrTheTensorIsNamed) {
  int shared = 0;
  for (const std::string& name : test::kAllGraphs)
    for (const double share : {0.75, 0.4}) {
      SCOPED_TRACE(name + ", share " + std::to_string(share));
      Rng rng(1, 9);
      const dag::Graph graph = test::training_graph(name);
      const PlanRequest request = request_of(graph, rng, 4, share);
      const auto plan = make_plan(request);
      if (plan) {
        expect_shares(request, *plan);
        ++shared;
        continue;
      }
      EXPECT_EQ(plan.error().code, ErrorCode::Infeasible);
      EXPECT_NE(plan.error().message.find("one tensor alone is "), std::string::npos) << plan.error().message;
    }
  EXPECT_GE(shared, 6);
}

TEST(Owners, EveryStrategyKeepsTheShare) {
  Rng rng(3, 9);
  const dag::Graph graph = test::chain(3, 16);
  PlanRequest request = request_of(graph, rng, 3, 0.5);
  for (const NamedStrategy& strategy : strategies()) {
    SCOPED_TRACE(strategy.name);
    request.strategy = strategy.name;
    const auto plan = make_plan(request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    expect_shares(request, *plan);
  }
}

// All fast devices are one owner's, and memory wants most of the stages that there can be.
TEST(Owners, ManyStagesAreDealtOutWhereMemoryIsShort) {
  const dag::Graph graph = test::chain(5, 24);
  const Plan alone = make_plan({.graph = &graph,
                                .microbatches = 8,
                                .optimizer_slots = 1,
                                .cluster = ClusterView({test::device("a")})})
                         .value();
  for (const double share : {1.0, 0.5, 0.4}) {
    SCOPED_TRACE("share " + std::to_string(share));
    std::vector<DeviceView> devices;
    for (uint32_t d = 0; d < 30; ++d) {
      const std::string site(1, static_cast<char>('p' + d / 10));
      devices.push_back(test::device(site + std::to_string(d), d < 10 ? 100 : 50, site, "cpu",
                                     {alone.stages[0].persistent.value / 2}));
      devices.back().owner = "owner" + std::to_string(d / 10);
      devices.back().site = d / 10;
    }
    const PlanRequest request{.graph = &graph,
                              .microbatches = 8,
                              .optimizer_slots = 1,
                              .cluster = ClusterView(devices),
                              .owner_share_max = share};
    const auto plan = make_plan(request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    EXPECT_GE(plan->stages.size(), 4u);
    if (share < 1) expect_shares(request, *plan);
  }
}

// What the planner counts, of training and of the evaluation that follows it, is what the pieces hold.
TEST(Owners, WhatIsCountedIsWhatThePiecesHold) {
  for (const char* name : {"fashion", "gpt"})
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE(std::string(name) + " seed " + std::to_string(seed));
      Rng rng(seed, 9);
      const dag::Graph graph = test::training_graph(name), other = test::evaluation_graph(name);
      PlanRequest request = request_of(graph, rng, 4, 0.7);
      auto plan = make_plan(request);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      const auto expect_same = [&](const dag::Graph& of) {
        request.graph = &of;
        std::vector<uint32_t> devices;
        for (const StagePlan& stage : plan->stages) devices.push_back(stage.devices[0]);
        const std::vector<double> counted = OwnerShares(request).shares(plan->stage_of_op, devices);
        auto held = shares_of(of, request.cluster, *plan);
        const std::vector<uint32_t> owners = owners_of(request.cluster);
        for (size_t d = 0; d < owners.size(); ++d)
          EXPECT_NEAR(counted[owners[d]], held[request.cluster.devices()[d].owner], 1e-9) << d;
      };
      expect_same(graph);
      plan->stage_of_op = follow_stages(other, {}, graph, plan->stage_of_op);
      // A stage may be without ops here.
      const std::set<uint32_t> used(plan->stage_of_op.begin(), plan->stage_of_op.end());
      std::vector<StagePlan> stages;
      for (const uint32_t stage : used) stages.push_back(plan->stages[stage]);
      plan->stages = stages;
      for (uint32_t& stage : plan->stage_of_op)
        stage = static_cast<uint32_t>(std::distance(used.begin(), used.find(stage)));
      expect_same(other);
    }
}

TEST(Owners, WhatCannotBeIsSaid) {
  Rng rng(1, 9);
  const dag::Graph graph = test::chain(1, 8);
  EXPECT_EQ(make_plan(request_of(graph, rng, 2, 0.3)).error().message,
            "at most 30% of the parameters on one owner's machines needs 4 owners, there are 2");
  PlanRequest request = request_of(graph, rng, 4, 0.5);
  request.stages = 1;
  EXPECT_EQ(make_plan(request).error().message,
            "at most 50% of the parameters on one owner's machines needs 2 stages, stages: 1 is fewer");
  std::vector<DeviceView> small(4, test::device("a", 50, "west", "cpu", {1000}));
  request.stages.reset();
  request.cluster = ClusterView(small);
  const std::string none = make_plan(request).error().message;
  EXPECT_NE(none.find("; with at most 50% of the parameters on one owner's machines"), std::string::npos)
      << none;
  request = request_of(graph, rng, 4, 0);
  EXPECT_EQ(make_plan(request).error().code, ErrorCode::InvalidArgument);
}

// A machine whose owner is not known is nobody else's.
TEST(Owners, WhoNamesNobodyStandsForItself) {
  const ClusterView cluster(
      {{.name = "a", .owner = "x"}, {.name = "b"}, {.name = "c"}, {.name = "d", .owner = "x"}});
  EXPECT_EQ(owners_of(cluster), (std::vector<uint32_t>{0, 1, 2, 0}));
}

}  // namespace
}  // namespace weft::plan
