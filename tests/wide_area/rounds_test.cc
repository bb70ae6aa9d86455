// Rounds of replicas on the virtual clock of bench/wan, where they can be counted by hand: replicas of one
// device each, whose model is two matrices.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "bench/wide_area/player.h"
#include "dag/autodiff.h"
#include "dag/loss.h"
#include "dag/lower.h"
#include "dag/op_table.h"
#include "net/model/link_model.h"

namespace weft::bench {
namespace {

using std::chrono::milliseconds;

constexpr int64_t kInputs = 1000, kHidden = 100, kClasses = 10;
constexpr double kLargeBytes = 4.0 * kInputs * kHidden;  // of a difference of the larger matrix, dense
constexpr double kLatency = 0.010;                       // seconds, one way

Model two_matrices() {
  dag::GraphBuilder graph(dag::op_table());
  const auto weight = [&](const char* name, dag::Shape shape) {
    return graph.initializer(name, {dag::DType::F32, std::move(shape)}, dag::InitializerRole::Parameter);
  };
  const auto x = graph.input("x", {dag::DType::F32, {1, kInputs}});
  const auto hidden = graph.add(dag::OpKind::MatMul, {x, weight("large", {kInputs, kHidden})}, {});
  const auto logits = graph.add(dag::OpKind::MatMul, {hidden, weight("small", {kHidden, kClasses})}, {});
  const auto target =
      graph.input(std::string(dag::kTargetInput), {dag::DType::I64, {1}}, dag::InputRole::Loss);
  graph.output("loss",
               graph.add(dag::OpKind::CrossEntropy, {logits, target},
                         {{dag::Attr::Axis, int64_t{1}}, {dag::Attr::Reduction, std::string("mean")}}),
               dag::OutputRole::Loss);
  Model model{.name = "two matrices", .microbatch_size = 1, .microbatches = 2};
  model.graph = dag::differentiate(graph.finish(), dag::op_table()).value();
  model.lowered = std::make_shared<const dag::Lowered>(dag::lower_traced(model.graph, dag::op_table(), {}));
  return model;
}

// Lines of so many bytes a second each way; a path without limit between any two.
plan::ClusterView homes(uint32_t count, double line) {
  plan::DeviceView device;
  device.uplink = device.downlink = line;
  std::vector<plan::DeviceView> devices(count, device);
  for (uint32_t home = 0; home < count; ++home) devices[home].site = home;
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < count; ++from)
    for (uint32_t to = 0; to < count; ++to)
      cluster.set_between(from, to, {plan::kUnlimited, milliseconds(10)});
  return cluster;
}

// Each replica is one device.
plan::ReplicasPlan plan_of(const Model& model, uint32_t replicas, uint32_t owner_of_large,
                           uint32_t owner_of_small) {
  plan::ReplicasPlan plan;
  for (uint32_t replica = 0; replica < replicas; ++replica)
    plan.replicas.push_back({.stage_of_op = std::vector<uint32_t>(model.graph.ops().size(), 0),
                             .stages = {{.devices = {replica}, .microbatches_in_flight = 1}}});
  const std::vector<uint32_t> stages(replicas, 0);
  plan.agreed = {{.name = "large", .owner = owner_of_large, .stages = stages},
                 {.name = "small", .number = 1, .owner = owner_of_small, .stages = stages}};
  return plan;
}

PlayedRounds played(const Model& model, const plan::ReplicasPlan& plan, const plan::ClusterView& cluster,
                    const replicas::ReplicaTerms& terms, uint32_t rounds) {
  const auto played = play_rounds(model, plan, terms, cluster, {.steps = rounds});
  EXPECT_TRUE(played) << played.error().message;
  return played.value_or(PlayedRounds{});
}

// There and back, where lines of that rate carry so many bytes each way; the second line begins once the
// first has passed a segment.
double there_and_back(double bytes, double line) {
  return 2 * ((bytes + net::kSegmentSize) / line + kLatency);
}
// Headers, frames and TLS are less than a hundredth of what is sent here.
void expect_nearly(double value, double expected) { EXPECT_NEAR(value, expected, 0.01 * expected); }

TEST(Rounds, AnAgreementTakesTheLargestTensorThereAndBack) {
  const Model model = two_matrices();
  constexpr double kLine = 1e6;
  const auto rounds = played(model, plan_of(model, 2, 0, 1), homes(2, kLine), {.every = 3}, 2);
  ASSERT_EQ(rounds.ends.size(), 2u);
  EXPECT_EQ(rounds.steps, 2u * 2 * 3);
  // The line up and the line down carry a tensor at once. The small one's mean waits for nobody.
  expect_nearly(seconds(rounds.agreement), there_and_back(kLargeBytes, kLine));
  // A difference and a mean of each tensor.
  expect_nearly(static_cast<double>(rounds.bytes_of_agreement), 2 * (kLargeBytes + 4.0 * kHidden * kClasses));
  EXPECT_EQ(rounds.bytes_between_stages, 0);
  EXPECT_EQ(rounds.ends[1], 2 * rounds.ends[0]) << "nothing is under way when a round begins";
}

TEST(Rounds, AnOwnersLineCarriesWhatAllOthersSend) {
  const Model model = two_matrices();
  constexpr double kLine = 1e6;
  const auto rounds = played(model, plan_of(model, 3, 2, 2), homes(3, kLine), {.every = 1}, 1);
  const double both = kLargeBytes + 4.0 * kHidden * kClasses;
  expect_nearly(seconds(rounds.agreement), there_and_back(2 * both, kLine));
}

TEST(Rounds, ACodecsBytesTravel) {
  const Model model = two_matrices();
  const compress::Codec codec = compress::parse("int4").value();
  const auto rounds = played(model, plan_of(model, 2, 0, 0), homes(2, 1e6), {.every = 1, .codec = codec}, 1);
  const auto coded = static_cast<double>(compress::wire_bytes(codec, kInputs * kHidden) +
                                         compress::wire_bytes(codec, kHidden * kClasses));
  EXPECT_LT(coded, kLargeBytes / 7);
  expect_nearly(static_cast<double>(rounds.bytes_of_agreement), 2 * coded);
  expect_nearly(seconds(rounds.agreement), there_and_back(coded, 1e6));
}

TEST(Rounds, OverlappingAgreementsAreWaitedForOnce) {
  const Model model = two_matrices();
  const auto cluster = homes(2, 1e8);
  const auto plan = plan_of(model, 2, 0, 1);
  const auto waits = played(model, plan, cluster, {.every = 20}, 4);
  const auto overlaps = played(model, plan, cluster, {.every = 20, .settle_every = 4}, 4);
  const double steps = seconds(waits.ends.front() - waits.agreement);  // of a round
  ASSERT_GT(steps, 2 * seconds(waits.agreement));
  EXPECT_EQ(waits.bytes_of_agreement, overlaps.bytes_of_agreement);
  expect_nearly(seconds(waits.ends.back()), 4 * (steps + seconds(waits.agreement)));
  expect_nearly(seconds(overlaps.ends.back()), 4 * steps + seconds(overlaps.agreement));
  expect_nearly(seconds(overlaps.agreement), seconds(waits.agreement));
}

TEST(Rounds, AnExchangeLongerThanARoundHoldsUpTheNextButOne) {
  const Model model = two_matrices();
  const auto cluster = homes(2, 1e6);
  const auto plan = plan_of(model, 2, 0, 1);
  const auto waits = played(model, plan, cluster, {.every = 2}, 1);
  const auto overlaps = played(model, plan, cluster, {.every = 2, .settle_every = 4}, 4);
  const double steps = seconds(waits.ends.front() - waits.agreement);
  ASSERT_LT(steps, 0.1 * seconds(waits.agreement));
  // Lines are full all the time: each difference and each mean once.
  EXPECT_GT(seconds(overlaps.ends.back()), 4 * kLargeBytes / 1e6);
  EXPECT_LT(seconds(overlaps.ends.back()), 4 * seconds(waits.ends.back()));
}

TEST(Rounds, ASlowerReplicaMakesItsShare) {
  const Model model = two_matrices();
  plan::ClusterView whole = homes(2, 1e8);
  std::vector<plan::DeviceView> devices = whole.devices();
  plan::Rates& slow = devices[1].rates;
  slow.matmul_flops_per_second /= 4;
  slow.memory_bytes_per_second /= 4;
  const plan::ClusterView cluster(std::move(devices));  // links of 1 Gbit/s, without a latency
  plan::ReplicasPlan plan = plan_of(model, 2, 0, 1);
  const auto alone = played(model, plan_of(model, 1, 0, 0), cluster, {.every = 20}, 1);
  plan.shares = {20, 5};
  const auto shared = played(model, plan, cluster, {.every = 20}, 2);
  EXPECT_EQ(shared.steps, 2u * 25);
  expect_nearly(seconds(shared.ends.front() - shared.agreement), seconds(alone.ends.front()));
  plan.shares.clear();
  const auto equal = played(model, plan, cluster, {.every = 20}, 1);
  EXPECT_EQ(equal.steps, 40u);
  EXPECT_GT(equal.ends.front(), 3 * shared.ends.front());
}

}  // namespace
}  // namespace weft::bench
