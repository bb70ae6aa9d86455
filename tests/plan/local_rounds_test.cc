// Rounds of replicas with local steps: what they take, which shares, which length and which codec.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "plan/local_rounds.h"
#include "plan/plan.h"
#include "tests/plan/graphs.h"
#include "tests/plan/replicas_lawful.h"

namespace weft::plan {
namespace {

using dag::Graph;
using std::chrono::milliseconds;
using test::devices_of;
using test::expect_lawful;
using test::planned;

// Of an agreement that takes as long as a round nobody sees anything but the one that is waited for.
TEST(ReplicasPlan, WhatOverlapsIsHidden) {
  const Graph graph = test::training_graph("gpt");
  ClusterView cluster({test::device("a", 50), test::device("b", 50)});
  cluster.set_between(0, 0, {1e5, milliseconds(100), false});
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .microbatches = 4, .cluster = cluster}, .count = 2, .every = 30};
  const ReplicasPlan waits = planned(request);
  request.settle_every = 8;
  const ReplicasPlan overlaps = planned(request);
  expect_lawful(request, overlaps);
  EXPECT_EQ(waits.agreement, overlaps.agreement);
  EXPECT_LT(overlaps.predicted_step, waits.predicted_step);
  EXPECT_NE(overlaps.explanation.front().find(", of 7 in 8 hidden"), std::string::npos)
      << overlaps.explanation.front();
}

// The next round's samples come over the lines by which means do.
TEST(ReplicasPlan, WhatOverlapsSharesTheDownlinkWithSamples) {
  const Graph graph = test::training_graph("gpt");
  int64_t bytes = 0;
  for (const Bytes of_input : data_bytes(graph)) bytes += of_input.value;
  ASSERT_GT(bytes, 0);
  plan::DeviceView home = test::device("home", 1e6);
  home.uplink = home.downlink = 1e4;
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .microbatches = 8, .cluster = ClusterView({home, home})},
      .count = 2,
      .every = 5,
      .settle_every = 64};
  const ReplicasPlan plan = planned(request);
  expect_lawful(request, plan);
  const double samples = 5 * 8 * static_cast<double>(bytes) / 1e4;
  ASSERT_GT(seconds(plan.agreement), seconds(plan.round)) << "it is not hidden";
  EXPECT_GT(5 * seconds(plan.predicted_step), 63.0 / 64 * (seconds(plan.agreement) + samples));
}

// A third of it at a time: what is hidden is as much, what is waited for is all.
TEST(LocalRounds, AreAboutAPartWhereNobodyWaits) {
  LocalRounds rounds{.step_seconds = {1, 1}, .every = 10, .settle_every = 1'000'000'000, .agreement = 60};
  EXPECT_NEAR(rounds.seconds_a_step(), 60.0 / 20, 1e-6);
  rounds.part = 1.0 / 3;
  EXPECT_NEAR(rounds.seconds_a_step(), 20.0 / 20, 1e-6);
  rounds.settle_every = 1;
  EXPECT_NEAR(rounds.seconds_a_step(), 70.0 / 20, 1e-6);
}

// Of a downlink each of four that send has a part, and samples the fifth. Who needs half of it for them makes
// two fifths of its steps meanwhile.
TEST(LocalRounds, WhoeverNeedsMoreOfALineThanItsPartWaitsForSamples) {
  LocalRounds rounds{.step_seconds = std::vector<double>(5, 1.0),
                     .every = 100,
                     .settle_every = 1'000'000'000,
                     .agreement = 60,
                     .data_seconds = std::vector<double>(5, 0.1),
                     .incoming_seconds = std::vector<double>(5, 50)};
  EXPECT_EQ(rounds.seconds_a_busy_round(), 100) << "a fifth is enough for a tenth";
  EXPECT_NEAR(rounds.seconds_a_step(), 0.2, 1e-6);
  rounds.data_seconds[3] = 0.5;
  EXPECT_NEAR(rounds.seconds_a_busy_round(), 100 + 50 * 0.6, 1e-9);
  EXPECT_NEAR(rounds.seconds_a_step(), 0.26, 1e-6);
  rounds.settle_every = 1;
  EXPECT_NEAR(rounds.seconds_a_step(), 160.0 / 500, 1e-9) << "where all wait nothing comes with samples";
  rounds.shares = {100, 100, 100, 10, 100};
  EXPECT_EQ(rounds.seconds_a_busy_round(), 100) << "it has time to wait";
}

// What is left open: the fewest steps and the gentlest codec, but for what others gain.
TEST(ReplicasPlan, ChoosesRoundsAndCodecByTheLines) {
  const Graph graph = test::training_graph("gpt");
  ReplicasRequest open{
      .pipeline = {.graph = &graph, .microbatches = 4},
      .count = 2,
      .every = 4,
      .every_max = 400,
      .codecs = {compress::parse("int4").value(), compress::parse("topk:0.02:int4").value()}};
  uint64_t before = 0;
  std::set<std::string> codecs;
  for (const double line : {1e10, 1e7, 1e6, 1e5, 1e4, 1e3, 1e2}) {
    SCOPED_TRACE(line);
    open.pipeline.cluster = ClusterView({test::device("one", 40), test::device("other", 40)});
    open.pipeline.cluster.set_between(0, 0, {line, milliseconds(1), false});
    const ReplicasPlan plan = planned(open);
    codecs.insert(compress::name(plan.codec));
    // As good as this plan is that of a request which names what it chose.
    ReplicasRequest named = open;
    named.every = plan.every, named.every_max = 0;
    named.codec = plan.codec, named.codecs.clear();
    const ReplicasPlan same = planned(named);
    expect_lawful(named, same);
    EXPECT_EQ(same.predicted_step, plan.predicted_step);
    EXPECT_EQ(same.agreement, plan.agreement);
    // By how much others would be faster.
    const auto rate_of = [&](uint64_t every, const compress::Codec& codec) {
      named.every = every, named.codec = codec;
      return 1 / seconds(planned(named).predicted_step);
    };
    const double rate = 1 / seconds(plan.predicted_step);
    EXPECT_GE(rate, 0.95 * rate_of(400, plan.codec) * (1 - 1e-6));
    if (plan.every > 4) {
      EXPECT_LT(rate_of(plan.every * 3 / 4, plan.codec), 0.95 * rate_of(400, plan.codec));
    }
    const double gain = rate_of(400, open.codecs[1]) / rate_of(400, open.codecs[0]);
    EXPECT_EQ(plan.codec == open.codecs[1], gain >= 1.25) << gain;
    if (plan.codec == open.codecs[0]) {
      EXPECT_GE(plan.every, before) << "slower lines, longer rounds";
      before = plan.every;
    }
  }
  EXPECT_EQ(codecs.size(), 2u);
  EXPECT_GT(before, 4u);
  open.every_max = 3;
  EXPECT_EQ(make_replicas_plan(open).error().code, ErrorCode::InvalidArgument);
}

// A card whose host has memory of its own holds no less of the model because it agrees with others.
TEST(ReplicasPlan, WhatTheyKeepToAgreeLiesOnTheHost) {
  const Graph graph = test::training_graph("gpt");
  int64_t parameters = 0;
  for (const dag::GraphOutput& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient) parameters += graph.spec(output.value).bytes().value;
  const auto stage = [&](uint32_t agreed, Bytes host) {
    DeviceView card = test::device("card", 40);
    card.host_memory = host;
    const PlanRequest request{.graph = &graph,
                              .microbatches = 4,
                              .optimizer_slots = 2,
                              .agreed_slots = agreed,
                              .cluster = ClusterView({card})};
    return make_plan(request).value().stages.front();
  };
  const Bytes host{int64_t{64} << 30}, none{};
  EXPECT_EQ(stage(4, host).memory, stage(0, host).memory);
  EXPECT_GE((stage(4, host).host_memory - stage(0, host).host_memory).value, 2 * 4 * parameters);
  const auto all = [&](uint32_t agreed) {
    const StagePlan of = stage(agreed, none);
    return of.memory.value + of.host_memory.value;
  };
  EXPECT_GE(all(4) - all(0), 2 * 4 * parameters) << "a processor has one memory";
  // A cut that fits by the planner's search, too: what is left free by what lies on the host.
  DeviceView card = test::device("card", 40);
  card.host_memory = host;
  card.memory = Bytes{stage(0, host).memory.value + parameters};
  const auto fits = make_plan({.graph = &graph,
                               .microbatches = 4,
                               .optimizer_slots = 2,
                               .agreed_slots = 4,
                               .cluster = ClusterView({card})});
  EXPECT_TRUE(fits.has_value()) << fits.error().message;
}

TEST(ReplicasPlan, SharesFollowTheSpeedOfEachReplica) {
  const Graph graph = test::training_graph("gpt");
  ClusterView cluster({test::device("slow", 10), test::device("fast", 40), test::device("snail", 1)});
  cluster.set_between(0, 0, {1e6, milliseconds(20), false});
  ReplicasRequest request{
      .pipeline = {.graph = &graph, .microbatches = 4, .cluster = cluster}, .count = 3, .every = 40};
  const ReplicasPlan equal = planned(request);
  EXPECT_TRUE(equal.shares.empty());
  request.by_speed = true;
  const ReplicasPlan plan = planned(request);
  expect_lawful(request, plan);
  ASSERT_EQ(plan.shares.size(), 3u);
  EXPECT_NEAR(static_cast<double>(plan.shares[0]), 10, 2);
  EXPECT_EQ(plan.shares[1], 40u);
  EXPECT_EQ(plan.shares[2], 5u) << "an eighth at least";
  EXPECT_LT(plan.predicted_step, equal.predicted_step);
  EXPECT_NE(plan.explanation.front().find("; shares: ["), std::string::npos) << plan.explanation.front();
  // Of shares that a run has the larger ones go to the faster.
  request.by_speed = false;
  request.shares = {40, 5, 10};
  const ReplicasPlan kept = planned(request);
  expect_lawful(request, kept);
  EXPECT_EQ(kept.shares, request.shares);
  EXPECT_EQ(devices_of(kept.replicas[0]), std::set<uint32_t>{1});
  EXPECT_EQ(devices_of(kept.replicas[1]), std::set<uint32_t>{2});
  request.shares = {40, 5};
  EXPECT_EQ(make_replicas_plan(request).error().code, ErrorCode::InvalidArgument);
}

}  // namespace
}  // namespace weft::plan
