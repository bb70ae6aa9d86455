// Curves that go on for ever, in bounded memory.
#include "ui/job_history.h"

#include <gtest/gtest.h>

#include <cmath>

namespace weft::ui {
namespace {

using proto::JobEvent;
using proto::JobEventKind;

struct Telling : ::testing::Test {
  JobHistory history;
  uint64_t sequence = 0;
  void tell(JobEvent event) {
    event.sequence = ++sequence;
    history.add(event);
  }
  void step(uint64_t step, double loss, bool skipped = false) {
    tell({.kind = JobEventKind::Step, .step = step, .loss = loss, .skipped = skipped});
  }
};

// Points are real ones, in order, and the newest is always there.
TEST_F(Telling, ACurveOfAMillionStepsIsBounded) {
  for (uint64_t i = 1; i <= 1'000'000; ++i) {
    step(i, 1.0 / static_cast<double>(i));
    const auto points = history.steps().points();
    ASSERT_LE(points.size(), kPointsMax);
    ASSERT_EQ(points.back().step, i);
  }
  const auto points = history.steps().points();
  EXPECT_GT(points.size(), kPointsMax / 2 - 1);
  for (size_t i = 0; i < points.size(); ++i) {
    EXPECT_EQ(points[i].loss, 1.0 / static_cast<double>(points[i].step));
    EXPECT_TRUE(i == 0 || points[i - 1].step < points[i].step) << i;
  }
  EXPECT_LT(points.front().step, 1'000'000 / (kPointsMax / 4));  // they span all of it
}

// With the same generation a reader who has N points finds the same N - 1 again.
TEST_F(Telling, WithinAGenerationPointsStayButForTheLast) {
  std::vector<StepPoint> before;
  uint64_t generation = 0;
  for (uint64_t i = 1; i <= 20'000; ++i) {
    step(i, static_cast<double>(i));
    const auto points = history.steps().points();
    const bool is_same = history.generation() == generation;
    for (size_t k = 0; is_same && k + 1 < before.size(); ++k) ASSERT_EQ(points[k].step, before[k].step);
    before.assign(points.begin(), points.end());
    generation = history.generation();
  }
  EXPECT_GT(generation, 3u);
}

TEST_F(Telling, AJobThatIsResumedDoesStepsAgain) {
  for (uint64_t i = 1; i <= 10; ++i) step(i, 5);
  tell({.kind = JobEventKind::Evaluation, .step = 10, .metrics = {{"accuracy", 0.5}}});
  const uint64_t generation = history.generation();
  step(7, 4);
  EXPECT_NE(history.generation(), generation);
  const auto points = history.steps().points();
  ASSERT_EQ(points.size(), 7u);
  EXPECT_EQ(points.back().loss, 4);
  EXPECT_TRUE(history.evaluations().points().empty());
}

TEST_F(Telling, ASkippedStepHasNoLoss) {
  step(1, 2);
  step(2, 0, /*skipped=*/true);
  EXPECT_TRUE(std::isnan(history.steps().points().back().loss));
}

TEST_F(Telling, WhatCameBeforeIsLeftOut) {
  step(1, 2);
  history.add({.sequence = 1, .kind = JobEventKind::Step, .step = 1, .loss = 9});
  ASSERT_EQ(history.steps().points().size(), 1u);
  EXPECT_EQ(history.steps().points().back().loss, 2);
  EXPECT_EQ(history.next_sequence(), 2u);
}

TEST_F(Telling, WhatIsSaidIsBoundedAndOfOneLine) {
  for (int i = 0; i < 1000; ++i) tell({.kind = JobEventKind::Notice, .text = "peer 'a\nb\x1b[2J' is lost"});
  EXPECT_EQ(history.lines().size(), kLinesMax);
  EXPECT_EQ(history.lines().back().text, "peer 'a?b?[2J' is lost");
  for (int i = 0; i < 100; ++i)
    tell({.kind = JobEventKind::Plan, .seconds = 0.5, .text = "2 stages\n  more", .peers = {"a", "b"}});
  ASSERT_EQ(history.plans().size(), kPlansMax);
  EXPECT_EQ(history.plans().back().lines, (std::vector<std::string>{"2 stages", "  more"}));
  EXPECT_EQ(history.lines().back().text, "2 stages");
}

TEST_F(Telling, AnEvaluationHasSoManyMetrics) {
  JobEvent event{.kind = JobEventKind::Evaluation, .step = 4};
  for (int i = 0; i < 100; ++i) event.metrics["metric" + std::to_string(i)] = i;
  tell(event);
  EXPECT_EQ(history.evaluations().points().back().metrics.size(), kMetricsMax);
}

}  // namespace
}  // namespace weft::ui
