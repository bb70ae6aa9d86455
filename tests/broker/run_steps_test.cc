// The steps of a run by themselves: who has said what, what is decided, in which order they are committed.
#include "broker/run/run_steps.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/broker/run_shape.h"

namespace weft::broker {
namespace {

using namespace std::chrono_literals;
using test::Shape;

class StepsFixture {
 public:
  explicit StepsFixture(const Shape& shape)
      : plan(test::plan_of(shape)), claims(*plan->stages[0].assignment), steps(plan, 0, 0) {
    steps.start(now);
  }
  Result<Steps::Heard> hear(uint32_t stage, uint64_t step, bool updated = true, double square = 4,
                            bool may_repeat = false) {
    proto::StepReport report{.run = 1, .plan_version = 1, .step = step};
    report.squares = {square};
    report.losses = {1.0, 3.0};
    report.updated = updated;
    auto heard = steps.on_report(now, stage, claims, report, may_repeat);
    const Status checked = steps.check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
    return heard;
  }
  void both(uint64_t step, double square = 4) {
    for (uint32_t stage = 0; stage < 2; ++stage) EXPECT_TRUE(hear(stage, step, true, square).has_value());
  }

  std::shared_ptr<const PlannedRun> plan;
  StageClaims claims;
  Steps steps;
  Instant now = Instant{} + 1h;
};

TEST(Steps, OneIsCommittedWhenEveryStageHasDoneIt) {
  StepsFixture run({});
  run.steps.grant(run.now, 3);
  run.now += 2s;
  ASSERT_FALSE(run.hear(0, 1)->is_whole);
  ASSERT_TRUE(run.hear(0, 2)->is_updated) << "no stage waits for another";
  EXPECT_FALSE(run.steps.next_done().has_value());
  EXPECT_EQ(run.steps.missing_reports().stages, std::vector<uint32_t>{1});
  const auto heard = run.hear(1, 1);
  ASSERT_TRUE(heard.has_value() && heard->is_whole);
  EXPECT_EQ(heard->seconds, 2) << "since it was granted";
  ASSERT_EQ(run.steps.next_done(), 1u);
  const Steps::Committed committed = run.steps.commit(run.now);
  EXPECT_EQ(committed.event->step, 1u);
  EXPECT_EQ(committed.event->loss, 2) << "the mean of the microbatches'";
  EXPECT_EQ(committed.event->gradient_norm, std::sqrt(8.0) / 2);
  EXPECT_EQ(committed.event->samples, 8u);
  EXPECT_EQ(run.steps.committed(), 1u);
  EXPECT_FALSE(run.steps.next_done().has_value());
}

TEST(Steps, OutOfTurnNothingIsTaken) {
  StepsFixture run({});
  EXPECT_FALSE(run.hear(0, 1).has_value()) << "not granted";
  run.steps.grant(run.now, 3);
  EXPECT_FALSE(run.hear(0, 2).has_value()) << "one is left out";
  ASSERT_TRUE(run.hear(0, 1).has_value());
  EXPECT_FALSE(run.hear(0, 1).has_value()) << "said before";
  const auto again = run.hear(0, 1, true, 4, /*may_repeat=*/true);
  ASSERT_TRUE(again.has_value());
  EXPECT_TRUE(again->is_repeat);
}

TEST(Steps, WhatIsDoneWithAGradientIsDecidedOnceForAll) {
  StepsFixture run({.clip_norm = 1});
  run.steps.grant(run.now, 2);
  EXPECT_FALSE(run.hear(0, 1, /*updated=*/false)->decision.has_value());
  EXPECT_EQ(run.steps.missing_reports().stages, std::vector<uint32_t>{1});
  EXPECT_FALSE(run.hear(0, 1).has_value()) << "nobody has told it the norm";
  const auto heard = run.hear(1, 1, /*updated=*/false);
  ASSERT_TRUE(heard.has_value() && heard->decision.has_value());
  EXPECT_EQ(heard->decision->norm, std::sqrt(8.0) / 2);
  EXPECT_FALSE(heard->decision->skip);
  EXPECT_EQ(heard->tell, (std::vector<uint32_t>{0, 1}));
  ASSERT_TRUE(run.hear(0, 1).has_value());
  EXPECT_TRUE(run.steps.decisions_for(0).empty()) << "it has done the step";
  ASSERT_EQ(run.steps.decisions_for(1).size(), 1u);
  EXPECT_EQ(run.steps.decisions_for(1)[0].norm, heard->decision->norm);
}

TEST(Steps, AStageThatCameBackMayHaveHeardTheNormBefore) {
  StepsFixture run({.clip_norm = 1});
  run.steps.resume(2, 0);
  const auto heard = run.hear(0, 1, true, 4, /*may_repeat=*/true);
  ASSERT_TRUE(heard.has_value());
  EXPECT_TRUE(heard->is_updated);
}

TEST(Steps, NumbersThatAreNotFiniteEndARunOrSkipAStep) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  StepsFixture stops({});
  stops.steps.grant(stops.now, 1);
  ASSERT_TRUE(stops.hear(0, 1).has_value());
  const auto bad = stops.hear(1, 1, true, kNaN);
  ASSERT_TRUE(bad.has_value() && bad->divergence.has_value());
  EXPECT_EQ(bad->divergence->stage, 1u);
  EXPECT_FALSE(stops.steps.next_done().has_value());

  StepsFixture skips({.steps = 200, .on_divergence = dag::OnDivergence::Skip});
  skips.steps.grant(skips.now, 200);
  for (uint64_t step = 1; step <= dag::kSkippedInARowMax; ++step) {
    EXPECT_FALSE(skips.hear(0, step, /*updated=*/false)->divergence.has_value());
    const auto told = skips.hear(1, step, /*updated=*/false, kNaN);
    ASSERT_TRUE(told.has_value() && told->decision && told->decision->skip);
    skips.both(step);
    const Steps::Committed committed = skips.steps.commit(skips.now);
    EXPECT_TRUE(committed.event->skipped && std::isnan(committed.event->loss));
    ASSERT_EQ(committed.divergence.has_value(), step == dag::kSkippedInARowMax) << step;
    EXPECT_FALSE(committed.divergence && committed.divergence->may_pass);
  }
}

TEST(Steps, WhatTheEventLogHasIsARepeat) {
  const Shape shape;
  StepsFixture run(shape);
  run.steps = Steps(run.plan, /*after_step=*/2, /*recorded=*/3);
  run.steps.start(run.now);
  run.steps.grant(run.now, 4);
  for (const uint64_t step : {3, 4}) {
    run.both(step);
    EXPECT_EQ(run.steps.commit(run.now).is_repeat, step == 3);
  }
  EXPECT_EQ(run.steps.recorded(), 4u);
}

TEST(Steps, ACheckFindsWhatIsGrantedBeyondTheEnd) {
  StepsFixture run({.steps = 3});
  run.steps.grant(run.now, 4);
  EXPECT_FALSE(run.steps.check().has_value());
}

}  // namespace
}  // namespace weft::broker
