// Steps of a run whose numbers are not finite, that are skipped, or that have nothing to learn from.
#include <gtest/gtest.h>

#include <limits>
#include <tuple>

#include "tests/broker/run_fixture.h"

namespace weft::broker {
namespace {

// With a gradient or loss that is not finite no step is committed, also where its copy is whole.
TEST(Divergence, StepsWithNumbersThatAreNotFiniteAreNotCommitted) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(),
                   kInfinity = std::numeric_limits<double>::infinity();
  for (const auto& [loss, square, says] : std::vector<std::tuple<double, double, std::string>>{
           {1, kNaN, "step 2: a gradient is not"},
           {1, kInfinity, "step 2: a gradient is not"},
           {kNaN, 1, "step 2: the loss of microbatch 1 is nan"},
           {kInfinity, 1, "the loss of microbatch 1 is inf"}}) {
    SCOPED_TRACE(says);
    RunFixture run({.stage_bytes = 1 << 20});
    run.hear(run.run.start(run.now));
    run.step(1, 0.1);
    run.snapshot(1);
    ASSERT_EQ(run.steps, StepList{1});
    ASSERT_TRUE(run.hear(run.run.on_report(run.now, 0, run.report_of(2))).has_value());
    proto::StepReport bad = run.report_of(2);
    bad.losses[1] = loss;
    bad.squares[0] = square;
    ASSERT_TRUE(run.hear(run.run.on_report(run.now, 1, bad)).has_value());
    ASSERT_TRUE(run.diverged_by.has_value());
    EXPECT_NE(run.diverged_by->what.find(says), std::string::npos) << run.diverged_by->what;
    EXPECT_EQ(run.diverged_by->step, 2u);
    EXPECT_EQ(run.diverged_by->stage, 1u);
    EXPECT_TRUE(run.diverged_by->may_pass);
    EXPECT_EQ(run.steps, StepList{1});
    EXPECT_EQ(run.run.committed_step(), 1u);
  }
}

// Both stages say what came out of the step; the second one's is `second`. What each is told then.
std::vector<proto::GradientNorm> decide(RunFixture& run, uint64_t step, const proto::StepReport& second) {
  run.sent.clear();
  EXPECT_TRUE(run.hear(run.run.on_report(run.now, 0, run.report_of(step, /*updated=*/false))).has_value());
  EXPECT_TRUE(run.sent.empty()) << "it is decided when all have said it";
  EXPECT_TRUE(run.hear(run.run.on_report(run.now, 1, second)).has_value());
  std::vector<proto::GradientNorm> told;
  for (const auto& [stage, messages] : run.sent)
    for (const proto::Message& message : messages)
      if (const auto* norm = std::get_if<proto::GradientNorm>(&message)) told.push_back(*norm);
  return told;
}

void update(RunFixture& run, uint64_t step) {
  proto::StepReport report{.run = 1, .plan_version = 1, .step = step, .updated = true};
  for (uint32_t stage = 0; stage < 2; ++stage)
    EXPECT_TRUE(run.hear(run.run.on_report(run.now, stage, report)).has_value());
}

proto::StepReport bad_report(const RunFixture& run, uint64_t step) {
  proto::StepReport bad = run.report_of(step, /*updated=*/false);
  bad.squares[0] = std::numeric_limits<double>::infinity();
  return bad;
}

// As RunBegin and the plan have it: small stages, so that each step has a copy.
const Shape kSkips{.stage_bytes = 1 << 20, .on_divergence = dag::OnDivergence::Skip};

TEST(SkippedSteps, LossesSquaresAndStatisticsOfOneStageDecideForAll) {
  RunFixture run(kSkips);
  run.hear(run.run.start(run.now));
  std::vector<proto::StepReport> reports(4);
  for (uint64_t step = 1; step <= 4; ++step) reports[step - 1] = run.report_of(step, /*updated=*/false);
  reports[1].squares[0] = std::numeric_limits<double>::quiet_NaN();
  reports[2].losses[0] = -std::numeric_limits<double>::infinity();
  reports[3].statistics_diverged = true;
  for (uint64_t step = 1; step <= 4; ++step) {
    const auto told = decide(run, step, reports[step - 1]);
    ASSERT_EQ(told.size(), 2u);
    for (const proto::GradientNorm& norm : told) EXPECT_EQ(norm.skip, step > 1) << "step " << step;
    update(run, step);
    run.snapshot(step);
  }
  EXPECT_FALSE(run.diverged_by.has_value());
  EXPECT_EQ(run.steps, (StepList{1, 2, 3, 4}));
  EXPECT_EQ(run.skipped, (StepList{2, 3, 4}));
  EXPECT_EQ(run.run.progress().last_loss(), 1.0) << "of the last step that was learnt from";
}

TEST(SkippedSteps, NobodyUpdatesBeforeItIsDecided) {
  RunFixture run(kSkips);
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.hear(run.run.on_report(run.now, 0, run.report_of(1, /*updated=*/true))).has_value());
}

TEST(SkippedSteps, AreSkippedAgainByABrokerThatWasRestarted) {
  RunFixture before(kSkips);
  before.hear(before.run.start(before.now));
  ASSERT_TRUE(decide(before, 1, bad_report(before, 1)).at(0).skip);
  RunFixture after(kSkips);
  after.run.resume(before.script);
  const uint64_t sequence = before.script.back().sequence;
  for (uint32_t stage = 0; stage < 2; ++stage)
    ASSERT_TRUE(after.hear(after.run.on_resumed(after.now, stage, sequence)).has_value());
  // One stage had heard of it and has done it; the other says the same again.
  ASSERT_TRUE(
      after.hear(after.run.on_report(after.now, 0, after.report_of(1, /*updated=*/false))).has_value());
  proto::StepReport done{.run = 1, .plan_version = 1, .step = 1, .updated = true};
  ASSERT_TRUE(after.hear(after.run.on_report(after.now, 0, done)).has_value());
  ASSERT_TRUE(after.hear(after.run.on_report(after.now, 1, bad_report(after, 1))).has_value());
  ASSERT_FALSE(after.sent[1].empty());
  EXPECT_TRUE(std::get<proto::GradientNorm>(after.sent[1].back()).skip);
  ASSERT_TRUE(after.hear(after.run.on_report(after.now, 1, done)).has_value());
  after.snapshot(1);
  EXPECT_EQ(after.skipped, StepList{1});
}

TEST(SkippedSteps, SnapshotsSayHowManyThereWereAndStagesHaveToAgree) {
  RunFixture run(kSkips);
  run.hear(run.run.start(run.now));
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .tensors = {}};
  for (uint64_t step = 1; step <= 3; ++step) {
    decide(run, step, step == 2 ? bad_report(run, step) : run.report_of(step, /*updated=*/false));
    update(run, step);
    report.step = step;
    report.skipped_steps = step > 1 ? 1 : 0;
    report.tensors = copy_of(kSkips, 0);
    ASSERT_TRUE(run.hear(run.run.on_report(run.now, 0, report, 0)).has_value());
    if (step == 3) report.skipped_steps = 2;
    report.tensors = copy_of(kSkips, 1);
    ASSERT_TRUE(run.hear(run.run.on_report(run.now, 1, report, 0)).has_value());
  }
  EXPECT_EQ(run.skipped_of, (std::map<uint64_t, uint64_t>{{1, 0}, {2, 1}}));
  EXPECT_EQ(run.failures, 1);
  RunFixture stops({.stage_bytes = 1 << 20});
  stops.hear(stops.run.start(stops.now));
  stops.step(1, 0.1);
  report.step = report.skipped_steps = 1;
  report.tensors = copy_of(kSkips, 0);
  EXPECT_FALSE(stops.hear(stops.run.on_report(stops.now, 0, report, 0)).has_value());
  report.skipped_steps = 0;
  EXPECT_TRUE(stops.hear(stops.run.on_report(stops.now, 0, report, 0)).has_value());
}

TEST(SkippedSteps, TooManyInARowEndTheRun) {
  RunFixture run({.steps = 1000, .stage_bytes = 1 << 20, .on_divergence = dag::OnDivergence::Skip});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 51 + dag::kSkippedInARowMax; ++step) {
    ASSERT_FALSE(run.diverged_by.has_value()) << "before step " << step;
    decide(run, step, step == 51 ? run.report_of(step, /*updated=*/false) : bad_report(run, step));
    update(run, step);
    if (!run.diverged_by) run.snapshot(step);
  }
  ASSERT_TRUE(run.diverged_by.has_value());
  EXPECT_FALSE(run.diverged_by->may_pass);
  EXPECT_EQ(run.diverged_by->step, 51 + dag::kSkippedInARowMax);
}

// Known from the labels: nobody is asked, whatever the job says of divergence, and they end no run.
TEST(EmptySteps, AreCommittedAsSkippedWithoutARoundTrip) {
  std::vector<uint64_t> most;
  for (uint64_t step = 2; step <= 3 + dag::kSkippedInARowMax; ++step) most.push_back(step);
  RunFixture run({.steps = 1000, .stage_bytes = 1 << 20, .empty_steps = most});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= most.back() + 1; ++step) {
    proto::StepReport report = run.report_of(step);
    // What comes of a step that teaches nothing does not matter either.
    if (step == 5) report.losses[0] = std::numeric_limits<double>::quiet_NaN();
    for (uint32_t stage = 0; stage < 2; ++stage)
      ASSERT_TRUE(run.hear(run.run.on_report(run.now, stage, report)).has_value()) << step;
    run.snapshot(step);
  }
  EXPECT_FALSE(run.diverged_by.has_value());
  EXPECT_EQ(run.skipped, most);
  for (const auto& [stage, sent] : run.sent)
    for (const proto::Message& message : sent)
      EXPECT_FALSE(std::holds_alternative<proto::GradientNorm>(message));
}

TEST(EmptySteps, AreToldToBeSkippedWhereStagesAsk) {
  RunFixture run({.stage_bytes = 1 << 20, .clip_norm = 1, .empty_steps = {2}});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const proto::GradientNorm& norm : decide(run, step, run.report_of(step, /*updated=*/false)))
      EXPECT_EQ(norm.skip, step == 2);
    update(run, step);
    run.snapshot(step);
  }
  EXPECT_EQ(run.skipped, StepList{2});
}

}  // namespace
}  // namespace weft::broker
