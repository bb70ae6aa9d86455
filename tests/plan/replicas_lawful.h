// What holds of every plan of replicas with local steps.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dag/state.h"
#include "plan/agreement.h"
#include "plan/replicas.h"
#include "replicas/parts.h"
#include "tests/plan/lawful.h"

namespace weft::test {

using plan::AgreedWeight;
using plan::Plan;
using plan::PlanRequest;
using plan::ReplicasPlan;
using plan::ReplicasRequest;
using plan::StagePlan;

inline ReplicasPlan planned(const ReplicasRequest& request) {
  auto plan = make_replicas_plan(request);
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan.value_or(ReplicasPlan{});
}

inline std::set<uint32_t> devices_of(const Plan& plan) {
  std::set<uint32_t> devices;
  for (const StagePlan& stage : plan.stages) devices.insert(stage.devices.front());
  return devices;
}

inline std::vector<double> incoming_of(const ReplicasRequest& request, const ReplicasPlan& plan) {
  std::vector<plan::AgreedLoad> loads;
  for (const AgreedWeight& weight : plan.agreed) {
    plan::AgreedLoad& load = loads.emplace_back();
    load.bytes = weight.bytes;
    load.owner = weight.owner;
    for (uint32_t replica = 0; replica < weight.stages.size(); ++replica)
      load.devices.push_back(plan.replicas[replica].stages[weight.stages[replica]].devices.front());
  }
  return incoming_seconds(request.pipeline.cluster, loads);
}

// Each replica computes the whole graph on devices that no other one has, and all that is trained has an
// owner.
inline void expect_lawful(const ReplicasRequest& request, const ReplicasPlan& plan) {
  const size_t count = plan.replicas.size();
  ASSERT_TRUE(count == request.count || (count > request.count && count <= request.count_max));
  std::set<uint32_t> used;
  double slowest = 0, busy = 0, steps = 0, data = 0;
  const std::vector<double> incoming = incoming_of(request, plan);
  if (request.by_speed || !request.shares.empty()) {
    ASSERT_EQ(plan.shares.size(), count);
    EXPECT_EQ(*std::max_element(plan.shares.begin(), plan.shares.end()), request.every);
  }
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const Plan& replica = plan.replicas[r];
    expect_lawful(request.pipeline, replica);
    for (const uint32_t device : devices_of(replica))
      EXPECT_TRUE(used.insert(device).second) << "device " << device << " is in two replicas";
    const auto share = static_cast<double>(plan.shares.empty() ? request.every : plan.shares[r]);
    const double step = seconds(replica.predicted_step);
    slowest = std::max(slowest, share * step);
    const PlanRequest& pipeline = request.pipeline;
    const auto line = data_line(pipeline.cluster, *pipeline.graph, pipeline.microbatches, replica);
    data = std::max(data, share * line.seconds);
    // Samples have one part of the line as long as an agreement comes, each other replica another.
    const double idle = std::max(0.0, 1 - step / (line.seconds * static_cast<double>(count)));
    busy = std::max(busy, share * step + incoming[line.device] * idle);
    steps += share;
  }
  EXPECT_LE(used.size(), request.pipeline.cluster.devices().size());
  const auto every = static_cast<double>(request.every);
  const double round = seconds(plan.predicted_step) * steps / static_cast<double>(count);
  const double agreement = seconds(plan.agreement), settled = 1 / static_cast<double>(request.settle_every);
  const double exchange = agreement + data;
  const double expected = settled * (slowest + agreement) + (1 - settled) * std::max(busy, exchange);
  EXPECT_NEAR(round, expected, 1e-8 * every + 1e-6 * expected);

  const dag::Graph& graph = *request.pipeline.graph;
  std::vector<std::string> trained;
  for (const dag::StateKey& key : dag::trained_state(graph, {}))
    if (is_weight(key.slot)) trained.push_back(key.name);
  std::map<std::string, uint64_t> agreed;  // how many numbers of it
  for (const AgreedWeight& weight : plan.agreed) {
    ASSERT_LT(replicas::place_of(weight.number), trained.size());
    EXPECT_EQ(weight.name, trained[replicas::place_of(weight.number)]);
    const auto elements =
        static_cast<uint64_t>(graph.spec(graph.find_initializer(weight.name)->value).element_count());
    EXPECT_EQ(replicas::first_of(weight.number), agreed[weight.name]);
    agreed[weight.name] += weight.elements > 0 ? weight.elements : elements;
    EXPECT_LE(agreed[weight.name], elements);
    EXPECT_LT(weight.owner, count);
    ASSERT_EQ(weight.stages.size(), count);
    const dag::OpId op = graph.value(graph.find_initializer(weight.name)->value).producer;
    for (uint32_t replica = 0; replica < count; ++replica)
      EXPECT_EQ(weight.stages[replica], plan.replicas[replica].stage_of_op[op.index]);
  }
  for (const std::string& name : trained)
    EXPECT_EQ(agreed[name],
              static_cast<uint64_t>(graph.spec(graph.find_initializer(name)->value).element_count()));
}

}  // namespace weft::test
