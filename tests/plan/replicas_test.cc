#include "plan/replicas.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "dag/state.h"
#include "plan/agreement.h"
#include "plan/groupings.h"
#include "plan/owners.h"
#include "tests/plan/graphs.h"
#include "tests/plan/replicas_lawful.h"

namespace weft::plan {
namespace {

using dag::Graph;
using std::chrono::milliseconds;

using test::devices_of;
using test::expect_lawful;
using test::planned;

class Replicas : public testing::TestWithParam<std::string> {};

ReplicasRequest random_request(const Graph& graph, Rng& rng, uint32_t devices) {
  return {.pipeline = {.graph = &graph,
                       .microbatches = static_cast<uint32_t>(1 + rng.below(4)),
                       .optimizer_slots = static_cast<uint32_t>(rng.below(3)),
                       .agreed_slots = 2,
                       .cluster = test::random_cluster(rng, devices)},
          .count = 1,
          .every = 1 + rng.below(40)};
}

TEST_P(Replicas, AreLawfulOnRandomClusters) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 31);
    const Graph graph = test::training_graph(GetParam(), seed);
    const auto devices = static_cast<uint32_t>(1 + rng.below(6));
    ReplicasRequest request = random_request(graph, rng, devices);
    request.count = static_cast<uint32_t>(1 + rng.below(devices));
    if (rng.below(2) == 0) request.codec = compress::parse("int4").value();
    if (rng.below(2) == 0)
      request.pipeline.stages = static_cast<uint32_t>(1 + rng.below(devices / request.count));
    expect_lawful(request, planned(request));
  }
}

// As many as pay: no number that could have been asked for takes clearly fewer seconds a step of the run.
TEST_P(Replicas, AreAsManyAsPay) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 33);
    const Graph graph = test::training_graph(GetParam(), seed);
    const auto devices = static_cast<uint32_t>(2 + rng.below(5));
    ReplicasRequest request = random_request(graph, rng, devices);
    request.count_max = 1024;
    request.by_speed = rng.below(2) == 0;
    const ReplicasPlan plan = planned(request);
    expect_lawful(request, plan);
    const auto a_step = [](const ReplicasPlan& of) {
      return seconds(of.predicted_step) / static_cast<double>(of.replicas.size());
    };
    request.count_max = 0;
    for (request.count = 1; request.count <= devices; ++request.count) {
      const auto fixed = make_replicas_plan(request);
      if (!fixed) continue;
      EXPECT_GE(a_step(*fixed), 0.9 * a_step(plan)) << request.count << " of " << devices;
    }
  }
}

TEST(ReplicasPlan, AnotherMachineIsAnotherReplica) {
  const Graph graph = test::training_graph("gpt");
  std::vector<DeviceView> devices;
  for (uint32_t count = 1; count <= 10; ++count) {
    devices.push_back(test::device("d" + std::to_string(count), 10));
    ClusterView cluster(devices);
    cluster.set_between(0, 0, {1e7, milliseconds(5), false});
    ReplicasRequest request{.pipeline = {.graph = &graph, .microbatches = 4, .cluster = cluster},
                            .count = 1,
                            .count_max = 1024,
                            .every = 100000};
    EXPECT_EQ(planned(request).replicas.size(), count);
  }
}

TEST_P(Replicas, AreTheSameForTheSameRequest) {
  const Graph graph = test::training_graph(GetParam());
  Rng rng(5, 32);
  const ReplicasRequest request{
      .pipeline = {.graph = &graph, .microbatches = 2, .cluster = test::random_cluster(rng, 5)},
      .count = 2,
      .every = 10,
      .compares = true};
  const ReplicasPlan a = planned(request), b = planned(request);
  EXPECT_EQ(a.explanation, b.explanation);
  EXPECT_EQ(a.predicted_step, b.predicted_step);
  for (size_t r = 0; r < a.replicas.size(); ++r)
    EXPECT_EQ(a.replicas[r].stage_of_op, b.replicas[r].stage_of_op);
  for (size_t i = 0; i < a.agreed.size(); ++i) EXPECT_EQ(a.agreed[i].owner, b.agreed[i].owner);
}

INSTANTIATE_TEST_SUITE_P(Graphs, Replicas, testing::Values("residual", "transformer", "gpt"),
                         [](const auto& param_info) { return param_info.param; });

TEST(ReplicasPlan, FastDevicesFarApartWorkAlone) {
  const Graph graph = test::training_graph("gpt");
  ClusterView cluster({test::device("a", 50), test::device("slow", 1), test::device("b", 50)});
  cluster.set_between(0, 0, {1e5, milliseconds(100), false});
  const ReplicasPlan plan = planned({.pipeline = {.graph = &graph, .microbatches = 4, .cluster = cluster},
                                     .count = 2,
                                     .every = 30,
                                     .compares = true});
  ASSERT_EQ(plan.replicas.size(), 2u);
  EXPECT_EQ(devices_of(plan.replicas[0]), std::set<uint32_t>{0});
  EXPECT_EQ(devices_of(plan.replicas[1]), std::set<uint32_t>{2});
  EXPECT_TRUE(plan.explanation.front().starts_with("2 replicas over 2 peers: ")) << plan.explanation.front();
  EXPECT_NE(plan.explanation.front().find(" times one pipeline; an agreement of "), std::string::npos);
  EXPECT_NE(plan.explanation.front().find(" every 30 steps takes "), std::string::npos);
}

// No device holds the model alone: each replica is of neighbours.
// As expect_lawful, of replicas that add each step's gradients: of one kind, and with all ranges between
// them.
void expect_exact(const ReplicasRequest& request, const ReplicasPlan& plan) {
  const size_t count = plan.replicas.size();
  ASSERT_TRUE(count >= request.count && count <= std::min(request.count_max, request.ranges));
  EXPECT_EQ(plan.steps_at_once(), 1u);
  if (count == 1) {
    EXPECT_TRUE(plan.ranges.empty() && plan.agreed.empty());
    return test::expect_lawful(request.pipeline, plan.replicas.front());
  }
  ASSERT_EQ(plan.ranges.size(), count);
  EXPECT_EQ(std::accumulate(plan.ranges.begin(), plan.ranges.end(), 0u), request.ranges);
  std::set<uint32_t> used;
  std::set<std::string> kinds;
  double slowest = 0;
  for (size_t r = 0; r < count; ++r) {
    PlanRequest own = request.pipeline;
    own.microbatches = own.microbatches / request.ranges * plan.ranges[r];
    own.agreed_slots = 2;
    EXPECT_GE(plan.ranges[r], 1u);
    test::expect_lawful(own, plan.replicas[r]);
    slowest = std::max(slowest, seconds(plan.replicas[r].predicted_step));
    for (const uint32_t device : devices_of(plan.replicas[r])) {
      EXPECT_TRUE(used.insert(device).second) << "device " << device << " is in two replicas";
      kinds.insert(request.pipeline.cluster.devices()[device].fingerprint);
    }
  }
  EXPECT_EQ(kinds.size(), 1u);
  EXPECT_NEAR(seconds(plan.predicted_step), slowest + seconds(plan.agreement), 1e-6 * slowest + 1e-8);
}

TEST_P(Replicas, ThatAddGradientsAreLawfulOnRandomClusters) {
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 37);
    const Graph graph = test::training_graph(GetParam(), seed);
    const auto devices = static_cast<uint32_t>(2 + rng.below(5));
    ReplicasRequest request = random_request(graph, rng, devices);
    request.pipeline.agreed_slots = 0;
    request.every = 1;
    request.ranges = static_cast<uint32_t>(2 + rng.below(4));
    request.pipeline.microbatches = request.ranges * static_cast<uint32_t>(1 + rng.below(3));
    request.count_max = static_cast<uint32_t>(2 + rng.below(4));
    expect_exact(request, planned(request));
  }
}

// Four machines alike make a step in little more than a quarter of the time of one, where lines are fast.
// Where they are slow it is not worth an exchange of all gradients. A faster one computes more of the ranges.
TEST(ReplicasPlan, AddGradientsWhereLinesAreFast) {
  const Graph graph = test::training_graph("gpt");
  const auto request_with = [&](double bytes_per_second, std::vector<double> speeds) {
    std::vector<DeviceView> devices;
    for (size_t i = 0; i < speeds.size(); ++i)
      devices.push_back(test::device("peer" + std::to_string(i), speeds[i]));
    ClusterView cluster(devices);
    cluster.set_between(0, 0, {bytes_per_second, milliseconds(1), false});
    return ReplicasRequest{
        .pipeline = {.graph = &graph, .microbatches = 8, .cluster = cluster}, .count_max = 4, .ranges = 8};
  };
  const ReplicasRequest near = request_with(1e10, {1, 1, 1, 1});
  const ReplicasPlan four = planned(near);
  expect_exact(near, four);
  EXPECT_EQ(four.ranges, (std::vector<uint32_t>{2, 2, 2, 2}));
  EXPECT_NE(four.explanation.front().find("4 replicas over 4 peers: each step's gradients"),
            std::string::npos)
      << four.explanation.front();
  const ReplicasRequest far = request_with(1e4, {1, 1, 1, 1});
  const ReplicasPlan one = planned(far);
  expect_exact(far, one);
  EXPECT_EQ(one.replicas.size(), 1u);
  const ReplicasRequest mixed = request_with(1e10, {3, 1});
  const ReplicasPlan two = planned(mixed);
  expect_exact(mixed, two);
  EXPECT_EQ(two.ranges, (std::vector<uint32_t>{6, 2}));
}

TEST(ReplicasPlan, WhatOneDeviceCannotHoldIsHeldByNeighbours) {
  const Graph graph = test::chain(1, 24);
  const auto cluster_of = [&](Bytes memory) {
    std::vector<DeviceView> devices;
    for (const char* name : {"w1", "e1", "w2", "e2"})
      devices.push_back(test::device(name, 50, name[0] == 'w' ? "west" : "east", "cpu", memory));
    ClusterView cluster(devices);
    for (size_t a = 0; a < 4; ++a)
      for (size_t b = 0; b < 4; ++b)
        cluster.set_link(a, b,
                         devices[a].region == devices[b].region ? LinkView{1.25e9, milliseconds(0)}
                                                                : LinkView{1e5, milliseconds(50)});
    return cluster;
  };
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .microbatches = 4, .cluster = cluster_of({int64_t{4} << 30})},
      .count = 2,
      .every = 30};
  const auto whole = make_plan(request.pipeline).value();
  Bytes needed;
  for (const StagePlan& stage : whole.stages) needed += stage.memory;
  request.pipeline.cluster = cluster_of({needed.value * 7 / 10});
  const ReplicasPlan plan = planned(request);
  expect_lawful(request, plan);
  EXPECT_EQ(devices_of(plan.replicas[0]), (std::set<uint32_t>{0, 2}));
  EXPECT_EQ(devices_of(plan.replicas[1]), (std::set<uint32_t>{1, 3}));
  request.pipeline.agreed_slots = 8;
  const auto too_large = make_replicas_plan(request);
  ASSERT_FALSE(too_large.has_value());
  EXPECT_EQ(too_large.error().code, ErrorCode::Infeasible);
  EXPECT_NE(too_large.error().message.find("the model does not fit"), std::string::npos)
      << too_large.error().message;
  EXPECT_NE(too_large.error().message.find("fewer replicas"), std::string::npos) << too_large.error().message;
}

TEST(ReplicasPlan, SaysHowManyPeersLack) {
  const Graph graph = test::chain(1, 6);
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .cluster = test::equal_devices(3)}, .count = 4, .every = 5};
  auto refused = make_replicas_plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Infeasible);
  EXPECT_EQ(refused.error().message, "replicas: 4 needs 4 peers, 3 are there");
  request.count = 2;
  request.pipeline.stages = 2;
  refused = make_replicas_plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().message, "replicas: 2 of 2 stages each needs 4 peers, 3 are there");
}

TEST(ReplicasPlan, APinIsForOneReplica) {
  const Graph graph = test::chain(1, 6);
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .cluster = test::equal_devices(2)}, .count = 2, .every = 5};
  Pin pin{.ops = "inputs", .of = {}, .device = 1};
  for (uint32_t op = 0; op < graph.ops().size() && pin.of.empty(); ++op)
    if (graph.ops()[op].kind != dag::OpKind::Input && graph.ops()[op].kind != dag::OpKind::Initializer)
      pin.of.push_back(dag::OpId{op});
  request.pipeline.pins.push_back(pin);
  const auto refused = make_replicas_plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::InvalidArgument);
  request.count = 1;
  EXPECT_EQ(devices_of(planned(request).replicas.front()).count(1), 1u);
}

TEST(ReplicasPlan, EqualBitsAreOfOneKindInAllReplicas) {
  const Graph graph = test::chain(1, 12);
  std::vector<DeviceView> devices;
  for (const char* kind : {"cpu", "cuda", "cuda", "cpu"})
    devices.push_back(test::device(std::string(kind) + std::to_string(devices.size()),
                                   std::string(kind) == "cuda" ? 500 : 50, "west", kind));
  ReplicasRequest request{.pipeline = {.graph = &graph,
                                       .microbatches = 2,
                                       .equal_bits = EqualBits::Require,
                                       .cluster = ClusterView(devices)},
                          .count = 2,
                          .every = 10};
  const ReplicasPlan plan = planned(request);
  EXPECT_EQ(devices_of(plan.replicas[0]), std::set<uint32_t>{1});
  EXPECT_EQ(devices_of(plan.replicas[1]), std::set<uint32_t>{2});
  request.count = 3;
  const auto refused = make_replicas_plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Infeasible);
  EXPECT_NE(refused.error().message.find("equal_bits: require needs 3 peers"), std::string::npos)
      << refused.error().message;
  request.pipeline.equal_bits = EqualBits::Prefer;
  EXPECT_EQ(planned(request).replicas.size(), 3u);
}

// With half of the parameters at most on an owner's machines, none is in two replicas.
TEST(ReplicasPlan, AnOwnerIsInOneReplica) {
  const Graph graph = test::chain(1, 24);
  ClusterView cluster = test::equal_devices(4, 1e9);
  std::vector<DeviceView> devices = cluster.devices();
  for (size_t i = 0; i < 4; ++i) devices[i].owner = i % 2 == 0 ? "anna" : "ben";
  ReplicasRequest request{.pipeline = {.graph = &graph,
                                       .microbatches = 4,
                                       .cluster = ClusterView(devices),
                                       .owner_share_max = 0.6},
                          .count = 2,
                          .every = 10};
  const auto refused = make_replicas_plan(request);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::Infeasible) << refused.error().message;
  for (size_t i = 0; i < 4; ++i) devices[i].owner = "owner " + std::to_string(i);
  request.pipeline.cluster = ClusterView(devices);
  const ReplicasPlan plan = planned(request);
  expect_lawful(request, plan);
  for (const Plan& replica : plan.replicas) EXPECT_GE(replica.stages.size(), 2u);
}

TEST(Agreement, TakesWhatTheBusiestLineTakesEachWay) {
  ClusterView cluster({test::device("a"), test::device("b"), test::device("c")});
  cluster.set_between(0, 0, {1e6, milliseconds(10), false});
  std::vector<AgreedLoad> loads{{.bytes = {4'000'000}, .devices = {0, 1}},
                                {.bytes = {4'000'000}, .devices = {0, 1}}};
  deal_owners(cluster, loads);
  EXPECT_NE(loads[0].owner, loads[1].owner);
  EXPECT_NEAR(agreement_seconds(cluster, loads), 8.02, 1e-9);
  // An uplink is for all that a device sends: the owner's means to two others.
  cluster.set_lines(0, 5e5, 1e9);
  const std::vector<AgreedLoad> of_three{{.bytes = {1'000'000}, .devices = {0, 1, 2}, .owner = 0}};
  EXPECT_NEAR(agreement_seconds(cluster, of_three), 1.01 + 4.01, 1e-9);
  EXPECT_EQ(agreement_seconds(cluster, std::vector<AgreedLoad>{{.bytes = {1000}, .devices = {1}}}), 0);
}

TEST(Agreement, OwnersOfEqualLinesTakeEqualParts) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 33);
    const auto count = static_cast<uint32_t>(2 + rng.below(4));
    const ClusterView cluster = test::equal_devices(count, 1e6);
    std::vector<AgreedLoad> loads(5 + rng.below(30));
    int64_t largest = 0;
    for (AgreedLoad& load : loads) {
      load.bytes = {static_cast<int64_t>(1 + rng.below(100'000))};
      largest = std::max(largest, load.bytes.value);
      for (uint32_t device = 0; device < count; ++device) load.devices.push_back(device);
    }
    deal_owners(cluster, loads);
    std::vector<int64_t> taken(count, 0);
    for (const AgreedLoad& load : loads) taken[load.owner] += load.bytes.value;
    const auto [least, most] = std::minmax_element(taken.begin(), taken.end());
    EXPECT_LE(*most - *least, largest);
  }
}

TEST(Agreement, WhoHasASlowLineOwnsLittle) {
  ClusterView cluster = test::equal_devices(3, 1e9);
  cluster.set_lines(0, 1e6, 1e6);
  std::vector<AgreedLoad> loads(12, {.bytes = {1000}, .devices = {0, 1, 2}});
  deal_owners(cluster, loads);
  EXPECT_EQ(std::count_if(loads.begin(), loads.end(), [](const auto& load) { return load.owner == 0; }), 0);
}

TEST(Groupings, EachDeviceIsInOneGroupAndGroupsAreLargeEnough) {
  const Graph graph = test::chain(1, 6);
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 34);
    const auto count = static_cast<uint32_t>(1 + rng.below(12));
    PlanRequest request{.graph = &graph, .cluster = test::random_cluster(rng, count)};
    const auto groups = static_cast<uint32_t>(1 + rng.below(count));
    const auto least = static_cast<uint32_t>(1 + rng.below(count / groups));
    std::vector<uint32_t> devices;
    for (uint32_t device = 0; device < count; ++device) devices.push_back(device);
    const std::vector<double> speeds = speeds_of(request);
    const auto proposed = propose_groups(request, speeds, devices, groups, least);
    ASSERT_FALSE(proposed.empty());
    for (const Groups& grouping : proposed) {
      EXPECT_EQ(grouping.size(), groups);
      std::vector<uint32_t> dealt;
      for (const Group& group : grouping) {
        EXPECT_GE(group.size(), least);
        dealt.insert(dealt.end(), group.begin(), group.end());
      }
      std::sort(dealt.begin(), dealt.end());
      EXPECT_EQ(dealt, devices);
    }
  }
}

}  // namespace
}  // namespace weft::plan
