// What a plan says of a model that is served: of equal layers on equal devices, where it can be reckoned.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/plan/serving_example.h"

namespace weft::plan {
namespace {

// As many layers as a model of some size has, on equal devices.
Example layers(uint32_t count, uint32_t devices, int64_t memory) {
  Example example;
  ServingRequest& request = example.request;
  request.context = 100;
  request.sequences_max = 4;
  for (uint32_t p = 0; p < 2 * count + 1; ++p) {
    request.weight_bytes.push_back(p % 2 == 0 ? 1000 : 0);
    request.parts.push_back({.cache_bytes = p % 2, .row_bytes = 64, .work_bytes = 10, .weights = {p}});
  }
  std::vector<DeviceView> views(devices);
  for (uint32_t d = 0; d < devices; ++d) {
    views[d].name = "d" + std::to_string(d);
    views[d].memory = {memory};
  }
  example.seconds.assign(devices, std::vector<PartSeconds>(request.parts.size(), {1e-3, 1e-4}));
  request.cluster = ClusterView(std::move(views));
  request.cluster.set_between(0, 0, {.bytes_per_second = 1e8, .latency = std::chrono::milliseconds(10)});
  return example;
}

TEST(ServingPlan, TakesAsFewStagesAsFitAndSharesCachesAmongThem) {
  Example example = layers(12, 5, 8000);
  const auto plan = plan_serving(example.asked());
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->stages.size(), 2u) << "13 weights of 1000, 8000 of memory each";
  example = layers(12, 1, 100'000);
  const auto alone = plan_serving(example.asked());
  ASSERT_TRUE(alone.has_value());
  EXPECT_EQ(alone->stages.size(), 1u);
  EXPECT_EQ(alone->stages[0].parts, (std::vector<PartSpan>{{0, 25}}));
  EXPECT_EQ(alone->positions_max, 400u);
  EXPECT_NEAR(alone->token_seconds, 25e-3, 1e-9);
  EXPECT_NE(alone->explanation.front().find("one stage on d0: a token takes 25.0 ms"), std::string::npos)
      << alone->explanation.front();
}

TEST(ServingPlan, RowsThatAreKeptHaveRoomBesideCaches) {
  Example example = layers(4, 3, 3500);  // a context of 100, rows of 64 bytes: 6400 a stage
  ServingRequest& request = example.request;
  request.sequences_max = 1;
  request.stages = 2;
  std::vector<DeviceView> views(request.cluster.devices());
  const auto plan_with = [&](int64_t memory, int64_t host) {
    for (uint32_t d = 1; d < 3; ++d) views[d].memory = {memory + 6400};
    views[0].memory = {memory};  // the fastest, if it has room for the rows
    views[0].host_memory = {host};
    request.cluster = ClusterView(views);
    request.cluster.set_between(0, 0, {.bytes_per_second = 1e8, .latency = std::chrono::milliseconds(10)});
    example.seconds[0].assign(request.parts.size(), {1e-4, 1e-5});
    auto plan = plan_serving(example.asked());
    EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
    return plan.value_or(ServingPlan{});
  };
  const auto has_fastest = [](const ServingPlan& plan) {
    return std::any_of(plan.stages.begin(), plan.stages.end(),
                       [](const ServingStage& stage) { return stage.device == 0; });
  };
  const ServingPlan without = plan_with(3500, 0), beside = plan_with(3500, 6400),
                    less = plan_with(3500, 6399);
  EXPECT_FALSE(has_fastest(without)) << "it would fit if no row were kept";
  EXPECT_EQ(without.kept_positions_max, 100u);
  EXPECT_EQ(without.stages[0].kept, Bytes{64});
  EXPECT_TRUE(has_fastest(beside)) << "its host has the rows";
  EXPECT_FALSE(has_fastest(less));
}

TEST(ServingPlan, WhereNoRowHasRoomNoneIsKept) {
  Example example = layers(4, 2, 3500);
  example.request.sequences_max = 1;
  const auto plan = plan_serving(example.asked());
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->positions_max, 100u);
  EXPECT_EQ(plan->kept_positions_max, 0u);
  EXPECT_EQ(plan->stages[0].kept, Bytes{});
  EXPECT_NE(plan->explanation.at(3).find("no memory is left for rows"), std::string::npos)
      << plan->explanation.at(3);
}

TEST(ServingPlan, ThroughputWantsMoreStages) {
  Example example = layers(12, 5, 1'000'000);
  example.request.sequences_max = 64;
  const auto quick = plan_serving(example.asked());
  example.request.objective = ServeObjective::Throughput;
  const auto broad = plan_serving(example.asked());
  ASSERT_TRUE(quick && broad);
  EXPECT_EQ(quick->stages.size(), 1u);
  EXPECT_EQ(broad->stages.size(), 5u);
  EXPECT_GT(broad->tokens_per_second, quick->tokens_per_second);
}

// Two stages of 1 ms a row, far apart.
ServingPlan far_apart(Duration latency, uint32_t sequences, double bytes_per_second = 1e12,
                      const std::optional<DraftLoad>& draft = {}) {
  Example example = layers(1, 2, 1'000'000);
  ServingRequest& request = example.request;
  example.seconds.assign(2, {{0.5e-3, 0.5e-3, 0}, {1e-3, 1e-3, 0}, {0.5e-3, 0.5e-3, 0}});
  request.stages = 2;
  request.sequences_max = sequences;
  request.draft = draft;
  request.cluster.set_between(0, 0, {.bytes_per_second = bytes_per_second, .latency = latency});
  const auto plan = plan_serving(example.asked());
  EXPECT_TRUE(plan.has_value()) << (plan ? "" : plan.error().message);
  return plan.value_or(ServingPlan{});
}

TEST(ServingPlan, HasMorePassesUnderWayWhereTheyTravelLong) {
  const ServingPlan near = far_apart(Duration{}, 32), far = far_apart(std::chrono::milliseconds(20), 32);
  EXPECT_EQ(near.passes, 2u) << "both stages are busy";
  EXPECT_NEAR(near.tokens_per_second, 1000, 1e-3);
  // Two passes of 16 rows go round in 72 ms, and 32 of one row in 42.
  EXPECT_GT(far.tokens_per_second, 0.95 * 32 / 42e-3);
  EXPECT_LT(far.tokens_per_second, 32 / 42e-3);
  EXPECT_NEAR(far.tokens_per_second, 32 / (40e-3 + 2e-3 * 32 / far.passes), 1e-3);
  EXPECT_EQ(far_apart(std::chrono::milliseconds(20), 1).passes, 2u) << "pieces of a prompt follow each other";
  EXPECT_LE(far_apart(std::chrono::seconds(20), 900).passes, kPassesMax);
}

TEST(ServingPlan, WithADraftTheGuessesOfOneSequenceFillTheRing) {
  const auto guessed = [](Duration latency, double guess_seconds, double bytes_per_second = 1e12) {
    return far_apart(latency, 1, bytes_per_second,
                     DraftLoad{.seconds = [=](uint32_t) { return guess_seconds; }});
  };
  const auto far = std::chrono::microseconds(20'250);
  // A row goes round in 42.5 ms, and each stage is done with one after 1 ms.
  const ServingPlan plan = guessed(far, 0);
  EXPECT_EQ(plan.passes, 44u);
  EXPECT_EQ(plan.passes_shared, far_apart(far, 1).passes) << "sequences stand in as many as without a draft";
  EXPECT_NEAR(plan.token_seconds, 42.5e-3, 1e-6);
  EXPECT_NEAR(plan.guessed_tokens_per_second, 5 / (42.5e-3 + 4e-3), 1e-2)
      << "of five tokens four are guessed";
  const auto says = [&](const ServingPlan& said, const std::string& line) {
    return std::find(said.explanation.begin(), said.explanation.end(), line) != said.explanation.end();
  };
  EXPECT_TRUE(says(plan, "with guesses right 8 of 10 times: 108 tokens/s of one"));
  // A draft that takes 9 ms for a guess holds up the entry, and a link of 104 bytes in 5.2 ms the next one.
  EXPECT_EQ(guessed(far, 9e-3).passes, 6u);
  EXPECT_NEAR(guessed(far, 9e-3).guessed_tokens_per_second, 5 / (42.5e-3 + 4 * 10e-3), 1e-2);
  EXPECT_EQ(guessed(far, 0, 2e4).passes, 12u) << "52.9 ms round";
  EXPECT_EQ(guessed(std::chrono::seconds(20), 0).passes, kDraftPassesMax);
  EXPECT_EQ(guessed(std::chrono::microseconds(100), 0).passes, 4u);
  const ServingPlan none = far_apart(far, 1);
  EXPECT_EQ(none.guessed_tokens_per_second, 0);
  EXPECT_EQ(none.explanation.size() + 1, plan.explanation.size());
}

TEST(ServingPlan, OneMachinePutsGuessesInOnePass) {
  Example example = layers(1, 1, 100'000);
  example.seconds = {{{1e-3, 9, 1e-5}, {1e-3, 9, 1e-5}, {1e-3, 9, 1e-5}}};
  example.request.draft.emplace();
  const auto plan = plan_serving(example.asked());
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  EXPECT_EQ(plan->passes, 1u);
  double tokens = 0;  // of so cheap rows as many as there may be
  for (int i = 0; i < 8; ++i) tokens += std::pow(0.8, i);
  EXPECT_NEAR(plan->guessed_tokens_per_second, tokens / (3e-3 + 7 * 3e-5), 1e-6);
  example.request.draft->seconds = [](uint32_t) { return 1.0; };
  const auto slow = plan_serving(example.asked());
  ASSERT_TRUE(slow.has_value());
  EXPECT_NEAR(slow->guessed_tokens_per_second, 1 / 3e-3, 1e-6) << "such guesses are not worth it";
}

TEST(ServingPlan, APromptGoesInPassesThatFollowEachOther) {
  Example example = layers(1, 1, 100'000);  // a context of 100: the prompt has 50 tokens
  example.seconds = {{{1e-3, 9, 1e-5}, {1e-3, 9, 2e-5}, {1e-3, 9, 3e-5}}};
  const auto whole = plan_serving(example.asked());
  ASSERT_TRUE(whole.has_value());
  EXPECT_NEAR(whole->first_token_seconds, 3e-3 + 49 * 6e-5, 1e-9);
  example.request.rows_max = 20;
  const auto parts = plan_serving(example.asked());
  ASSERT_TRUE(parts.has_value());
  EXPECT_NEAR(parts->first_token_seconds, 3 * (3e-3 + 19 * 6e-5), 1e-9);
}

TEST(ServingPlan, ALinkCarriesNoMoreThanItsBytesAllow) {
  EXPECT_NEAR(far_apart(Duration{}, 32, 5e4).tokens_per_second, 5e4 / (64 + kPiece), 1);
}

TEST(ServingPlan, ManyDevicesOfManySitesGiveARingOfNeighbours) {
  Example example = layers(24, 120, 6500);  // 25 weights of 1000: five stages at least
  ServingRequest& request = example.request;
  std::vector<DeviceView> views(request.cluster.devices());
  for (uint32_t d = 0; d < views.size(); ++d) views[d].site = d % 10;
  request.cluster = ClusterView(std::move(views));
  for (uint32_t a = 0; a < 10; ++a)
    for (uint32_t b = 0; b < 10; ++b)
      request.cluster.set_between(
          a, b, {.bytes_per_second = 1e8, .latency = std::chrono::milliseconds(a == b ? 1 : 50)});
  const auto plan = plan_serving(example.asked());
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  std::set<uint32_t> sites;
  for (const ServingStage& stage : plan->stages) sites.insert(request.cluster.devices()[stage.device].site);
  EXPECT_EQ(sites.size(), 1u);
  EXPECT_EQ(plan->stages.size(), 5u);
  const auto again = plan_serving(example.asked());
  EXPECT_EQ(again->explanation, plan->explanation);
}

TEST(ServingPlan, VeryManyPartsAreCutBetweenSomeOfThem) {
  Example example = layers(1000, 3, 400'000);
  example.request.weight_bytes.assign(2001, 500);
  const auto plan = plan_serving(example.asked());
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  expect_a_ring(*plan, 2001);
  EXPECT_EQ(plan->stages.size(), 3u);
}

TEST(ServingPlan, EqualBitsAreKeptWhereTheyAreAskedFor) {
  Example example = layers(12, 4, 8000);
  ServingRequest& request = example.request;
  std::vector<DeviceView> views(request.cluster.devices());
  for (uint32_t d = 0; d < 4; ++d) views[d].fingerprint = d % 2 == 0 ? "even" : "odd";
  request.cluster = ClusterView(views);
  for (const EqualBits equal_bits : {EqualBits::Require, EqualBits::Prefer}) {
    request.equal_bits = equal_bits;
    const auto plan = plan_serving(example.asked());
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    ASSERT_EQ(plan->stages.size(), 2u);
    EXPECT_EQ(plan->stages[0].device % 2, plan->stages[1].device % 2);
  }
  request.equal_bits = EqualBits::Require;
  request.stages = 3;
  const auto refused = plan_serving(example.asked());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("3 peers of one fingerprint"), std::string::npos);
}

TEST(ServingPlan, ARequestOfNoSenseIsRefused) {
  const auto refused = [](const std::function<void(ServingRequest&)>& spoil) {
    Example example = layers(3, 2, 100'000);
    const auto& asked = example.asked();
    spoil(example.request);
    const auto plan = plan_serving(asked);
    return plan ? ErrorCode::Internal : plan.error().code;
  };
  const auto code = ErrorCode::InvalidArgument;
  EXPECT_EQ(refused([](auto& r) { r.parts.clear(); }), code);
  EXPECT_EQ(refused([](auto& r) { r.context = 0; }), code);
  EXPECT_EQ(refused([](auto& r) { r.rows_max = 0; }), code);
  EXPECT_EQ(refused([](auto& r) { r.stages = 0; }), code);
  EXPECT_EQ(refused([](auto& r) { r.parts[1].weights = {99}; }), code);
  EXPECT_EQ(refused([](auto& r) { r.weights_everywhere = {7}; }), code);
  EXPECT_EQ(refused([](auto& r) { r.parts[0].row_bytes = -1; }), code);
  EXPECT_EQ(refused([](auto& r) { r.weight_bytes[0] = -1; }), code);
  EXPECT_EQ(refused([](auto& r) { r.draft = DraftLoad{.weight_bytes = -1}; }), code);
  EXPECT_EQ(refused([](auto& r) { r.draft = DraftLoad{.cache_bytes = -1}; }), code);
  EXPECT_EQ(refused([](auto& r) { r.cluster.set_between(0, 0, {.bytes_per_second = 0}); }), code);
  EXPECT_EQ(refused([](auto& r) { r.cluster = ClusterView(); }), ErrorCode::Infeasible);
  EXPECT_EQ(refused([](auto& r) { r.stages = 3; }), ErrorCode::Infeasible);
}

}  // namespace
}  // namespace weft::plan
