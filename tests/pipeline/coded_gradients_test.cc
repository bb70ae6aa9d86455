// Replicas whose sums of gradients go through a codec (sync: {every: step, codec: int8}). Which bytes come of
// it depends on who computes and who adds up what, and on nothing else: not on the order of messages, and not
// on where a run began again. Every replica has the same ones.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <utility>

#include "dag/autodiff.h"
#include "dag/lower.h"
#include "peer/backend/cpu/cpu_backend.h"
#include "tests/pipeline/coded_alone.h"
#include "tests/pipeline/perceptron.h"

namespace weft::pipeline {
namespace {

// What a case is, whoever computes it.
struct Coded {
  explicit Coded(const Case& of)
      : backend(value_or_fail(peer::make_cpu_backend({.threads = 1}))),
        model(of.model == "residual"     ? test::residual_net(3, {.batch = kMicrobatchSize})
              : of.model == "perceptron" ? perceptron()
                                         : test::transformer(3, {.batch = kMicrobatchSize})),
        whole(dag::lower(
            value_or_fail(dag::differentiate(model.graph, dag::op_table())), dag::op_table(),
            {.fuse_elementwise = true, .convolution_layout = backend->traits().convolution_layout})),
        spec(training_spec(of)) {}

  std::unique_ptr<peer::Backend> backend;
  test::Model model;
  Graph whole;
  dag::TrainingSpec spec;
};

void expect_same(const State& expected, const State& found, const std::string& whose) {
  ASSERT_EQ(found.size(), expected.size()) << whose;
  for (const auto& [key, tensor] : expected) {
    const auto at = found.find(key);
    ASSERT_NE(at, found.end()) << whose << ": " << to_string(key);
    const auto a = tensor.bytes(), b = at->second.bytes();
    EXPECT_TRUE(a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0)
        << whose << ": " << to_string(key) << " differs";
  }
}

class CodedGradients : public testing::TestWithParam<Case> {};

TEST_P(CodedGradients, AreTheSameInEveryReplicaAndThoseOfOneExecutor) {
  const Case& param = GetParam();
  const Coded coded(param);
  int played = 0;
  for (uint64_t seed = 1; played < 3 && seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 17);
    const auto splits = random_splits(coded.whole, param, rng, seed);
    if (!splits) continue;
    ++played;
    Cluster cluster(coded.whole, coded.model, *splits, param, *coded.backend, coded.spec, rng);
    cluster.play();
    if (HasFailure()) return;
    CodedAlone alone(coded.whole, coded.model, *coded.backend, coded.spec, param, cluster.summed());
    for (uint64_t step = 1; step <= kSteps; ++step) alone.make_step(step);
    const State expected = alone.state();
    expect_same(expected, cluster.state(), "the last snapshot");
    const std::vector<State> replicas = cluster.states_of_replicas();
    for (size_t replica = 0; replica < replicas.size(); ++replica)
      expect_same(expected, replicas[replica], "replica " + std::to_string(replica));
    EXPECT_GT(alone.encoded(), 0u);
    std::vector<uint64_t> skipped;
    for (const auto& event : cluster.events())
      if (event.skipped) skipped.push_back(event.step);
    EXPECT_EQ(skipped, param.skips ? (std::vector<uint64_t>{1, 3}) : std::vector<uint64_t>{})
        << "what is not finite is seen by all";
    if (HasFailure()) return;
  }
  EXPECT_GE(played, 1);
}

// The same seats, from a snapshot on, with messages in another order.
TEST_P(CodedGradients, AreTheSameWhenStepsAreMadeAgain) {
  const Case& param = GetParam();
  if (param.skips) return;  // the broker counts what was skipped before
  const Coded coded(param);
  for (uint64_t seed = 1;; ++seed) {
    ASSERT_LT(seed, 40u);
    Rng rng(seed, 18);
    const auto splits = random_splits(coded.whole, param, rng, seed);
    if (!splits) continue;
    const Rng dealt = rng;
    Cluster first(coded.whole, coded.model, *splits, param, *coded.backend, coded.spec, rng);
    first.play();
    if (HasFailure()) return;
    Rng again = dealt;
    Cluster second(coded.whole, coded.model, *splits, param, *coded.backend, coded.spec, again,
                   {2, first.state_after(2)});
    again = Rng(seed, 19);
    second.play();
    if (HasFailure()) return;
    expect_same(first.state(), second.state(), "from step 2 on");
    return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Runs, CodedGradients,
    testing::Values(
        Case{.model = "transformer", .stages = 1, .ranges = {1, 1}, .codec = "int8"},
        Case{.model = "transformer", .stages = 3, .clip_norm = 0.5, .ranges = {2, 2}, .codec = "int4"},
        Case{.model = "transformer", .stages = 2, .clip_norm = 0.5, .ranges = {1, 3}, .codec = "int8z"},
        Case{.model = "transformer", .stages = 2, .ranges = {1, 2, 1}, .coded_slots = true, .codec = "int8"},
        Case{.model = "residual", .stages = 3, .clip_norm = 0.5, .ranges = {2, 2}, .codec = "int8"},
        Case{.model = "residual", .stages = 2, .ranges = {1, 1, 1, 1}, .codec = "int4"},
        Case{.model = "perceptron", .stages = 2, .skips = true, .ranges = {2, 2}, .codec = "int8"},
        Case{.model = "perceptron", .stages = 3, .skips = true, .ranges = {1, 1, 2}, .codec = "int4"}));

// As the same steps do where nothing is rounded.
TEST(CodedGradients, Learn) {
  constexpr uint64_t kLong = 40;
  std::map<std::string, double> losses;
  for (const char* codec : {"dense", "int8", "int4"}) {
    const Case of{.model = "transformer", .ranges = {1, 1, 1, 1}, .codec = codec};
    Coded coded(of);
    coded.spec.steps = kLong;
    std::vector<proto::AgreedTensor> summed;
    for (const std::string& name : parameters_of(coded.whole)) {
      const auto number = static_cast<uint32_t>(summed.size());
      summed.push_back({.number = number, .name = name, .owner = number % 4});
    }
    CodedAlone alone(coded.whole, coded.model, *coded.backend, coded.spec, of, summed);
    const double first = alone.make_step(1);
    for (uint64_t step = 2; step < kLong; ++step) alone.make_step(step);
    losses[codec] = alone.make_step(kLong);
    EXPECT_LT(losses[codec], 0.5 * first) << codec;
  }
  EXPECT_NEAR(losses["int8"], losses["dense"], 0.05 * losses["dense"]);
  EXPECT_NEAR(losses["int4"], losses["dense"], 0.2 * losses["dense"]);
}

}  // namespace
}  // namespace weft::pipeline
