#include "plan/predict.h"

#include <gtest/gtest.h>

#include "plan/model.h"
#include "plan/plan.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

using std::chrono::milliseconds;

Pipeline two_segments_each(uint32_t stages, Duration forward, Duration backward, Bytes bytes) {
  Pipeline pipeline;
  for (uint32_t s = 0; s < stages; ++s) {
    StageWork stage;
    stage.segments = {{forward, false}, {backward, true}};
    pipeline.stages.push_back(stage);
    if (s > 0) pipeline.messages.push_back({s, 1, s - 1, 1, bytes});
    if (s + 1 < stages) pipeline.messages.push_back({s, 0, s + 1, 0, bytes});
  }
  return pipeline;
}
std::vector<uint32_t> one_forward_one_backward(uint32_t stages) {
  std::vector<uint32_t> in_flight;
  for (uint32_t s = 0; s < stages; ++s) in_flight.push_back(stages - s);
  return in_flight;
}

TEST(Predict, OneStageIsTheSumOfItsWork) {
  Pipeline pipeline = two_segments_each(1, milliseconds(2), milliseconds(4), {0});
  pipeline.stages[0].update = milliseconds(5);
  const Prediction predicted = predict({&pipeline, {LinkView{}}, 8, {1}, nullptr});
  EXPECT_EQ(predicted.step, milliseconds(8 * 6 + 5));
  EXPECT_EQ(predicted.busy[0], milliseconds(8 * 6 + 5));
}

TEST(Predict, EqualStagesWithoutLinksTakeTheBoundOf1F1B) {
  for (const uint32_t stages : {2u, 3u, 4u, 8u})
    for (const uint32_t microbatches : {1u, 4u, 16u}) {
      const Pipeline pipeline = two_segments_each(stages, milliseconds(1), milliseconds(2), {0});
      const std::vector<LinkView> links(size_t{stages} * stages, {1e15, Duration{}});
      const Prediction predicted =
          predict({&pipeline, links, microbatches, one_forward_one_backward(stages), nullptr});
      EXPECT_EQ(predicted.step, milliseconds(3 * (microbatches + stages - 1)))
          << stages << " stages, " << microbatches << " microbatches";
    }
}

TEST(Predict, ALinkAddsLatencyAndTransfer) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {1000});
  const std::vector<LinkView> links(4, {1e5, milliseconds(20)});  // 10 ms a message
  const Prediction predicted = predict({&pipeline, links, 1, {2, 1}, nullptr});
  EXPECT_EQ(predicted.step, milliseconds(1 + 30 + 3 + 30 + 2));
  EXPECT_EQ(predicted.sending[0 * 2 + 1], milliseconds(10));
}

TEST(Predict, ALinkCarriesOneMessageAfterTheOther) {
  Pipeline pipeline;
  pipeline.stages.resize(2);
  pipeline.stages[0].segments = {{milliseconds(1), false}};
  pipeline.stages[1].segments = {{milliseconds(1), false}};
  pipeline.messages = {{0, 0, 1, 0, {1000}}};
  const std::vector<LinkView> links(4, {1e5, Duration{}});
  const Prediction predicted = predict({&pipeline, links, 100, {4, 4}, nullptr});
  EXPECT_GE(predicted.step, milliseconds(1000));  // 10 ms for each
  EXPECT_LE(predicted.step, milliseconds(1002));
}

TEST(Predict, MoreInFlightHidesLatency) {
  const Pipeline pipeline = two_segments_each(2, milliseconds(1), milliseconds(2), {10});
  const std::vector<LinkView> links(4, {1e9, milliseconds(20)});
  const Duration few = predict({&pipeline, links, 32, {2, 1}, nullptr}).step;
  const Duration many = predict({&pipeline, links, 32, {16, 15}, nullptr}).step;
  EXPECT_LT(seconds(many), 0.5 * seconds(few));
}

TEST(Predict, ManyMicrobatchesAreExtrapolated) {
  const Pipeline pipeline = two_segments_each(4, milliseconds(1), milliseconds(2), {0});
  const std::vector<LinkView> links(16, {1e15, Duration{}});
  const Prediction predicted = predict({&pipeline, links, 5000, {4, 3, 2, 1}, nullptr});
  EXPECT_NEAR(seconds(predicted.step), 3e-3 * 5003, 3e-3);
  EXPECT_TRUE(predicted.order.empty());
}

TEST(Predict, TheFixedOrderOfAPredictionGivesTheSameStep) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const auto stages = static_cast<uint32_t>(2 + rng.below(4));
    Pipeline pipeline =
        two_segments_each(stages, Duration(1 + rng.below(1000)), Duration(1 + rng.below(2000)),
                          {static_cast<int64_t>(rng.below(3000))});
    std::vector<LinkView> links(size_t{stages} * stages);
    for (LinkView& link : links) link = {1e9 * (0.1 + rng.uniform()), Duration(rng.below(3000))};
    PredictRequest request{&pipeline, links, static_cast<uint32_t>(1 + rng.below(12)),
                           one_forward_one_backward(stages), nullptr};
    const Prediction predicted = predict(request);
    request.order = &predicted.order;
    EXPECT_EQ(predict(request).step, predicted.step);
  }
}

// Law 6, on cuts of real graphs.
TEST(Predict, MoreBandwidthNeverLengthensTheStepOfAFixedPlan) {
  for (const std::string& name : test::kAllGraphs) {
    const dag::Graph graph = test::training_graph(name, 1);
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      SCOPED_TRACE(name + ", seed " + std::to_string(seed));
      Rng rng(seed, 2);
      const auto count = static_cast<uint32_t>(2 + rng.below(3));
      const PlanRequest wanted{.graph = &graph,
                               .microbatches = static_cast<uint32_t>(1 + rng.below(8)),
                               .stages = count,
                               .optimizer_slots = 1,
                               .cluster = test::random_cluster(rng, count)};
      const auto plan = make_plan(wanted);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      std::vector<StageDevice> devices;
      PredictRequest request;
      for (const StagePlan& stage : plan->stages) {
        devices.push_back({wanted.cluster.devices()[stage.devices[0]].rates, 0});
        request.in_flight.push_back(stage.microbatches_in_flight);
        for (const StagePlan& to : plan->stages)
          request.links.push_back(wanted.cluster.link(stage.devices[0], to.devices[0]));
      }
      const Pipeline pipeline =
          make_pipeline(make_model(graph), plan->stage_of_op, devices,
                        {.microbatches = wanted.microbatches, .optimizer_slots = wanted.optimizer_slots})
              .value();
      request.pipeline = &pipeline;
      request.microbatches = wanted.microbatches;
      const Prediction predicted = predict(request);
      EXPECT_EQ(predicted.step, plan->predicted_step);
      request.order = &predicted.order;
      Duration last = predicted.step;
      for (int round = 0; round < 12; ++round) {
        for (LinkView& link : request.links)
          if (rng.below(2) == 0) link.bytes_per_second *= 1 + rng.uniform();
        const Duration step = predict(request).step;
        EXPECT_LE(step, last);
        last = step;
      }
    }
  }
}

}  // namespace
}  // namespace weft::plan
