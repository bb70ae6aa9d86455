// Of replicas that add each step's gradients and leave the optimizer's slots of a parameter to its owner:
// what that takes of each device's memory.
#include "plan/shared_slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "plan/pipeline.h"
#include "plan/replicas.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using dag::Graph;

ReplicasRequest request_of(const Graph& graph, const ClusterView& cluster, uint32_t replicas, bool shares) {
  return {.pipeline = {.graph = &graph,
                       .microbatches = replicas,
                       .optimizer_slots = 2,
                       .equal_bits = EqualBits::Require,
                       .cluster = cluster},
          .count = replicas,
          .count_max = replicas,
          .ranges = replicas,
          .shares_slots = shares};
}

// As many equal devices with that memory, which is the host's, too.
ClusterView cluster_of(uint32_t count, int64_t memory) {
  std::vector<DeviceView> devices;
  for (uint32_t d = 0; d < count; ++d)
    devices.push_back(test::device("peer" + std::to_string(d), 50, "west", "cpu", {memory}));
  ClusterView cluster(devices);
  cluster.set_between(0, 0, {1e10, std::chrono::milliseconds(1), false});
  return cluster;
}

int64_t slots_of(const Graph& graph) {
  int64_t all = 0;
  for (const dag::GraphOutput& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient) all += bytes_beside(graph.spec(output.value), {.slots = 2});
  return all;
}

// By device of the plan: its slots, as the owners have them.
std::map<uint32_t, int64_t> owned(const ReplicasPlan& plan) {
  std::map<uint32_t, int64_t> owned;
  for (const AgreedWeight& weight : plan.agreed)
    owned[plan.replicas[weight.owner].stages[weight.stages[weight.owner]].devices.front()] +=
        weight.slots.value;
  return owned;
}

TEST(SharedSlots, ThePlanHasTheMemoryOfWhatEachDeviceOwns) {
  const Graph graph = test::training_graph("gpt");
  const int64_t all = slots_of(graph);
  for (const uint32_t replicas : {2u, 3u, 4u}) {
    SCOPED_TRACE(replicas);
    const ClusterView cluster = cluster_of(replicas, int64_t{4} << 30);
    const auto whole = make_replicas_plan(request_of(graph, cluster, replicas, false));
    const auto shared = make_replicas_plan(request_of(graph, cluster, replicas, true));
    ASSERT_TRUE(whole && shared);
    EXPECT_FALSE(whole->shares_slots);
    ASSERT_TRUE(shared->shares_slots);
    EXPECT_NE(shared->explanation.front().find("lie with its owner alone"), std::string::npos)
        << shared->explanation.front();
    auto of = owned(*shared);
    int64_t sum = 0, largest = 0;
    for (const AgreedWeight& weight : shared->agreed) largest = std::max(largest, weight.slots.value);
    for (uint32_t r = 0; r < replicas; ++r) {
      ASSERT_EQ(whole->replicas[r].stages.size(), 1u);
      ASSERT_EQ(shared->replicas[r].stages.size(), 1u);
      const StagePlan& before = whole->replicas[r].stages[0];
      const StagePlan& after = shared->replicas[r].stages[0];
      const int64_t own = of[after.devices.front()];
      EXPECT_EQ(before.persistent.value - after.persistent.value, all - own);
      EXPECT_EQ(before.host_memory.value - after.host_memory.value, all - own);
      EXPECT_LE(std::abs(own - all / replicas), largest) << "owners are far from equal parts";
      sum += own;
    }
    EXPECT_EQ(sum, all);
  }
}

// The least memory of each device with which there is a plan, to a thousandth.
int64_t least_memory(const Graph& graph, uint32_t replicas, bool shares) {
  int64_t too_small = 0, enough = int64_t{1} << 30;
  while (enough - too_small > enough / 1000) {
    const int64_t memory = (too_small + enough) / 2;
    const ClusterView cluster = cluster_of(replicas, memory);
    const auto plan = make_replicas_plan(request_of(graph, cluster, replicas, shares));
    (plan ? enough : too_small) = memory;
    if (!plan) continue;
    for (const Plan& replica : plan->replicas)
      for (const StagePlan& stage : replica.stages)
        EXPECT_LE(stage.memory.value + stage.host_memory.value, memory);
  }
  return enough;
}

// On the device, and in a copy of it on the same machine.
TEST(SharedSlots, LetReplicasFitThatDidNot) {
  const Graph graph = test::training_graph("gpt");
  const int64_t all = slots_of(graph);
  for (const uint32_t replicas : {2u, 4u}) {
    SCOPED_TRACE(replicas);
    const int64_t whole = least_memory(graph, replicas, false), shared = least_memory(graph, replicas, true);
    const double spared = 2.0 * static_cast<double>(all) * (1 - 1.0 / replicas);
    EXPECT_GE(static_cast<double>(whole - shared), 0.8 * spared) << whole << " and " << shared;
  }
}

TEST(SharedSlots, AnOwnerIsOneThatHasRoom) {
  const ClusterView cluster = test::equal_devices(3, 1e6);
  std::vector<AgreedLoad> loads(12, {.bytes = {1000}, .devices = {0, 1, 2}, .kept = {2000}});
  deal_owners(cluster, loads, {}, {3000, 8000, 100'000});
  std::vector<int> owned(3, 0);
  for (const AgreedLoad& load : loads) ++owned[load.owner];
  EXPECT_EQ(owned, (std::vector<int>{1, 4, 7}));
  deal_owners(cluster, loads, {}, {0, 1000, 1500});
  EXPECT_EQ(loads[0].owner, 2u) << "who lacks least, where nobody has room";
}

}  // namespace
}  // namespace weft::plan
