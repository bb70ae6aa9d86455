// Evaluations, predictions and comparisons of links by themselves.
#include "broker/run/run_forward.h"

#include <gtest/gtest.h>

#include <cmath>

#include "broker/run/run_compare.h"
#include "tests/broker/run_shape.h"

namespace weft::broker {
namespace {

using namespace std::chrono_literals;
using proto::CommandKind;
using test::Shape;

proto::EvaluationReport evaluation(uint64_t step, uint32_t first, std::vector<double> loss,
                                   std::vector<double> correct, std::vector<double> counted) {
  return {.run = 1,
          .plan_version = 1,
          .step = step,
          .first_microbatch = first,
          .loss = std::move(loss),
          .correct = std::move(correct),
          .counted = std::move(counted)};
}

TEST(ForwardPass, AsksForTwoChunksAheadOfWhatIsThere) {
  const auto plan = test::plan_of({.steps = 10, .forward_microbatches = 5});
  ForwardPass forward(plan, {}, /*chunk=*/2);
  EXPECT_FALSE(forward.is_due(9));
  EXPECT_TRUE(forward.is_due(10)) << "the last step";
  EXPECT_FALSE(forward.next().has_value());
  forward.begin_evaluation(10);
  const auto first = forward.next(), second = forward.next();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->kind, CommandKind::Evaluate);
  EXPECT_EQ(first->first_microbatch, 0u);
  EXPECT_EQ(second->first_microbatch, 2u);
  EXPECT_EQ(second->microbatches, 2u);
  EXPECT_FALSE(forward.next().has_value());
  EXPECT_FALSE(*forward.on_report(evaluation(10, 1, {1}, {1}, {4}))) << "the oldest is not there";
  EXPECT_TRUE(*forward.on_report(evaluation(10, 0, {1}, {1}, {4})));
  const auto last = forward.next();
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->first_microbatch, 4u);
  EXPECT_EQ(last->microbatches, 1u) << "there are five";
  EXPECT_TRUE(forward.check().has_value());
}

TEST(ForwardPass, TheMeanIsSaidOnceAfterItsStepIsCommitted) {
  const auto plan = test::plan_of({.steps = 1, .forward_microbatches = 2});
  ForwardPass forward(plan, {}, 8);
  forward.begin_evaluation(1);
  const auto command = forward.next();
  ASSERT_TRUE(command.has_value());
  EXPECT_FALSE(forward.awaits(evaluation(2, 0, {}, {}, {})));
  ASSERT_TRUE(forward.awaits(evaluation(1, 0, {}, {}, {})));
  EXPECT_FALSE(forward.on_report(evaluation(1, 1, {1, 2}, {}, {})).has_value()) << "there are two";
  ASSERT_TRUE(forward.on_report(evaluation(1, 0, {8, 1}, {3, 1}, {4, 2})).has_value());
  EXPECT_FALSE(forward.finish(0).has_value());
  EXPECT_FALSE(forward.is_settled(*command));
  const auto event = forward.finish(1);
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->metrics.at("loss"), 9.0 / 6);
  EXPECT_EQ(event->metrics.at("accuracy"), 4.0 / 6);
  EXPECT_EQ(event->samples, 7u) << "the last microbatch is short";
  EXPECT_FALSE(forward.finish(1).has_value());
  EXPECT_TRUE(forward.is_settled(*command));
  EXPECT_FALSE(forward.is_due(1));
}

TEST(ForwardPass, APredictionGoesOnAfterWhatIsThere) {
  auto plan = std::make_shared<PlannedRun>(*test::plan_of({.steps = 0, .forward_microbatches = 3}));
  plan->prediction_stages = 2;
  const auto report = [](uint32_t microbatch, const std::string& output) {
    proto::PredictionReport made{.run = 1, .plan_version = 1, .microbatch = microbatch};
    made.outputs.push_back({dag::of_initializer(output), {dag::DType::F32, {}}, {}});
    return made;
  };
  ForwardPass forward(plan, {.predicted = 1, .predictions = {report(1, "y0")}}, 1);
  const auto command = forward.next();
  ASSERT_TRUE(command.has_value());
  EXPECT_EQ(command->kind, CommandKind::Predict);
  EXPECT_EQ(command->first_microbatch, 1u) << "the first one is there";
  EXPECT_FALSE(forward.is_asked(report(2, "y0")));
  EXPECT_TRUE(forward.has(0, report(1, "y0"))) << "another peer had reported it";
  ASSERT_FALSE(forward.has(1, report(1, "y1")));
  EXPECT_TRUE(forward.on_report(1, report(1, "y1")));
  EXPECT_TRUE(forward.is_settled(*command));
  ASSERT_TRUE(forward.next().has_value());
  EXPECT_FALSE(forward.on_report(0, report(2, "y0")));
  EXPECT_FALSE(forward.is_complete());
  EXPECT_TRUE(forward.on_report(1, report(2, "y1")));
  EXPECT_TRUE(forward.is_complete());
  EXPECT_TRUE(forward.check().has_value());
}

const Shape kCompressed{.steps = 1000, .compresses = true};

proto::ComparisonReport comparison(uint64_t step, std::vector<double> squares, std::vector<double> losses) {
  return {
      .run = 1, .plan_version = 1, .step = step, .losses = std::move(losses), .squares = std::move(squares)};
}

TEST(Comparison, IsDueAfterSomeStepsAndTakesItsShareOfTheTime) {
  const auto plan = test::plan_of(kCompressed);
  Comparison links(*plan, {}, {});
  const Instant begin = Instant{} + 1h;
  links.start(begin);
  const double cost = links.cost(1);
  EXPECT_GT(cost, 1);
  const auto after = [&](double seconds) {
    return begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  };
  EXPECT_FALSE(links.is_due(after(1e6), 15, 1)) << "too early";
  EXPECT_FALSE(links.is_due(after(cost / 0.02 - 1), 16, 1));
  EXPECT_TRUE(links.is_due(after(cost / 0.02 + 1), 16, 1));
  EXPECT_FALSE(Comparison(*test::plan_of({}), {}, {}).is_due(after(1e6), 16, 1)) << "dense links";
  EXPECT_FALSE(Comparison(*plan, {}, {.compare_share = 0}).is_due(after(1e6), 16, 1));
}

TEST(Comparison, TellsErrorAndAngleOfAllStagesTogether) {
  Comparison links(*test::plan_of(kCompressed), {}, {});
  const Instant now = Instant{} + 1h;
  const auto command = links.write(now, 5, 20);
  EXPECT_EQ(command.kind, CommandKind::Compare);
  EXPECT_FALSE(links.is_settled(5));
  EXPECT_FALSE(links.awaits(0, 21));
  EXPECT_FALSE(Comparison::check_passes(comparison(20, {1, 2}, {})).has_value());
  EXPECT_FALSE(Comparison::check_passes(comparison(20, {1, 2, 3}, {1, 2})).has_value());
  // Dense (3, 0), compressed (0, 4): each stage has one of the two numbers.
  EXPECT_FALSE(links.on_report(now, 0, comparison(20, {9, 9, 0}, {})).is_done);
  EXPECT_FALSE(links.awaits(0, 20)) << "it has answered";
  const auto heard = links.on_report(now + 2s, 1, comparison(20, {0, 16, 16}, {1, 1.25, 1.5}));
  ASSERT_TRUE(heard.is_done && heard.result.has_value());
  EXPECT_EQ(heard.result->loss_dense, 1);
  EXPECT_EQ(heard.result->loss, 1.5);
  EXPECT_DOUBLE_EQ(heard.result->gradient_error, 5.0 / 3);
  EXPECT_EQ(heard.result->gradient_cosine, 0);
  EXPECT_TRUE(links.is_settled(5));
  EXPECT_EQ(links.cost(1), 2) << "as the last one took";
}

TEST(Comparison, NumbersThatAreNotFiniteSayNothingOfTheLinks) {
  Comparison links(*test::plan_of(kCompressed), {}, {});
  const Instant now = Instant{} + 1h;
  links.write(now, 5, 20);
  links.on_report(now, 0, comparison(20, {1, 1, 1}, {}));
  const auto heard = links.on_report(now, 1, comparison(20, {HUGE_VAL, 1, 1}, {}));
  EXPECT_TRUE(heard.is_done);
  EXPECT_FALSE(heard.result.has_value());
}

}  // namespace
}  // namespace weft::broker
