// The script of one run, by hand-moved time: when it stops, what is settled, what may be repeated.
#include "broker/run/run.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/broker/run_fixture.h"

namespace weft::broker {
namespace {

TEST(Stop, AfterAStepThatWasOnlyCopiedTakesOneStepMore) {
  RunFixture run({.stage_bytes = 0});
  run.hear(run.run.start(run.now));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/false));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{9}));
  for (uint64_t step = 1; step <= 9; ++step) {
    run.step(step, 0.1);
    run.snapshot(step);
  }
  EXPECT_EQ(run.stopped_after, 9u);
  EXPECT_EQ(run.checkpoints, (StepList{9}));
}

TEST(Stop, ToGoOnElsewhereACopyIsEnough) {
  RunFixture run({.stage_bytes = 0});
  run.hear(run.run.start(run.now));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/true));
  for (uint64_t step = 1; step <= 8; ++step) {
    run.step(step, 0.1);
    run.snapshot(step);
  }
  EXPECT_EQ(run.stopped_after, 8u);
  EXPECT_TRUE(run.checkpoints.empty());
}

TEST(DiskFull, TheRunGoesOnAndTheLastCheckpointIsTriedAgainEveryTenSeconds) {
  RunFixture run({.steps = 3, .stage_bytes = 0});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 3; ++step) {
    run.step(step, 0.1);
    run.snapshot(step, /*fails=*/true);
  }
  EXPECT_EQ(run.steps, (StepList{1, 2, 3})) << "commits do not wait for what failed";
  EXPECT_EQ(run.failures, 3);
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{3}));
  run.now += std::chrono::seconds(9);
  run.hear(run.run.on_tick(run.now));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{3}));
  run.now += std::chrono::seconds(2);
  run.hear(run.run.on_tick(run.now));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{3, 3}));
  run.snapshot(3);
  EXPECT_TRUE(run.is_finished);
}

TEST(Script, IsCountedAndSaysWhatIsSettled) {
  RunFixture run({.stage_bytes = 0, .checkpoint_steps = 4});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 30; ++step) {
    run.step(step, 0.1);
    run.snapshot(step);
  }
  uint64_t sequence = 0;
  for (const Command& command : run.script) EXPECT_EQ(command.sequence, ++sequence);
  const Command& last = run.script.back();
  EXPECT_EQ(last.committed, 30u);
  EXPECT_EQ(last.keep_from, 30u) << "the snapshot of that step is whole";
  const Command& settled = run.script[last.settled - 1];
  EXPECT_EQ(settled.step, 30u);
}

TEST(Repeats, AreAnErrorUnlessTheStageHasComeBack) {
  RunFixture run({.stage_bytes = 0});
  run.hear(run.run.start(run.now));
  run.step(1, 0.1);
  EXPECT_FALSE(run.hear(run.run.on_report(run.now, 0, run.report_of(1))).has_value());
  ASSERT_TRUE(run.hear(run.run.on_resumed(run.now, 0, run.script.back().sequence)).has_value());
  EXPECT_TRUE(run.hear(run.run.on_report(run.now, 0, run.report_of(1))).has_value());
  EXPECT_EQ(run.run.repeats_dropped(), 1u);
  EXPECT_FALSE(run.hear(run.run.on_report(run.now, 0, run.report_of(3))).has_value()) << "a step left out";
  EXPECT_FALSE(run.hear(run.run.on_report(run.now, 1, run.report_of(1))).has_value()) << "the other did not";
}

TEST(Resumed, AStageGetsTheCommandsItMissedAndTheNormsOfStepsUnderWay) {
  RunFixture run({.stage_bytes = 0, .clip_norm = 1});
  run.hear(run.run.start(run.now));
  for (uint32_t s = 0; s < 2; ++s)
    ASSERT_TRUE(run.hear(run.run.on_report(run.now, s, run.report_of(1, /*updated=*/false))).has_value());
  run.sent.clear();
  ASSERT_TRUE(run.hear(run.run.on_resumed(run.now, 1, 13)).has_value());
  ASSERT_EQ(run.sent[1].size(), run.script.size() - 13 + 1);
  EXPECT_EQ(std::get<Command>(run.sent[1][0]).sequence, 14u);
  EXPECT_EQ(std::get<proto::GradientNorm>(run.sent[1].back()).step, 1u);
  EXPECT_TRUE(run.sent[0].empty());
  EXPECT_FALSE(run.hear(run.run.on_resumed(run.now, 1, run.script.size() + 1)).has_value());
}

TEST(Resume, WhatIsRecordedIsNotRecordedTwiceAndCommandsGoOn) {
  RunFixture before({.stage_bytes = 0});
  before.hear(before.run.start(before.now));
  for (uint64_t step = 1; step <= 5; ++step) {
    before.step(step, 0.1);
    before.snapshot(step);
  }
  RunFixture after({.stage_bytes = 0}, {.recorded = 5});
  after.run.resume(before.script);
  for (uint32_t s = 0; s < 2; ++s)
    ASSERT_TRUE(after.hear(after.run.on_resumed(after.now, s, before.script.back().sequence)).has_value());
  const uint64_t known = before.script.back().committed;
  for (uint64_t step = known + 1; step <= 7; ++step) after.step(step, 0.1);
  for (uint64_t step = before.script.back().keep_from + 1; step <= 7; ++step) after.snapshot(step);
  EXPECT_EQ(after.steps, (StepList{6, 7}));
  ASSERT_FALSE(after.script.empty());
  EXPECT_EQ(after.script.front().sequence, before.script.back().sequence + 1);
}

// Two losses of weights 2 and 0.5, of which the second is the cross entropy, over two microbatches.
TEST(Evaluation, OfSeveralLossesIsTheWeightedSumOfTheirMeans) {
  RunFixture run({.steps = 1, .forward_microbatches = 2, .loss_terms = {{2, 0.5}, 1}, .apart = true});
  run.hear(run.run.start(run.now));
  run.step(1, 0.1);
  run.snapshot(1);
  const auto report = [&](uint32_t stage, std::vector<double> loss, std::vector<double> correct,
                          std::vector<double> counted) {
    return run.hear(run.run.on_report(run.now, stage,
                                      proto::EvaluationReport{.run = 1,
                                                              .plan_version = 1,
                                                              .step = 1,
                                                              .first_microbatch = 0,
                                                              .loss = std::move(loss),
                                                              .correct = std::move(correct),
                                                              .counted = std::move(counted)}));
  };
  EXPECT_FALSE(report(0, {1, 2, 3}, {}, {}).has_value()) << "no whole number of microbatches";
  EXPECT_FALSE(report(0, {1, 2, 3, 4, 5, 6}, {}, {}).has_value()) << "of microbatches that there are not";
  // From the stages that own the outputs, in any order.
  ASSERT_TRUE(report(0, {}, {}, {4, 10, 2, 5}).has_value());
  ASSERT_TRUE(run.run.metrics().empty());
  ASSERT_TRUE(report(1, {8, 30, 1, 15}, {6, 3}, {}).has_value());
  EXPECT_EQ(run.run.metrics().at("loss"), 2 * ((8.0 + 1) / (4 + 2)) + 0.5 * ((30.0 + 15) / (10 + 5)));
  EXPECT_EQ(run.run.metrics().at("accuracy"), (6.0 + 3) / (10 + 5));
}

TEST(Ledger, SamplesThatAreNotTheStepsTurnAreAnError) {
  RunFixture run({.stage_bytes = 0});
  run.hear(run.run.start(run.now));
  proto::StepReport report = run.report_of(1);
  report.sample_positions = {0, 4};
  EXPECT_TRUE(run.hear(run.run.on_report(run.now, 0, report)).has_value());
  report.sample_positions = {0, 8};
  const Status status = run.hear(run.run.on_report(run.now, 1, report));
  ASSERT_FALSE(status.has_value());
  EXPECT_NE(status.error().message.find("began with sample 8 of the sequence, not with 4"), std::string::npos)
      << status.error().message;
}

Status compare(RunFixture& f, uint32_t stage, uint64_t step, std::vector<double> losses,
               std::vector<double> squares) {
  return f.hear(f.run.on_report(f.now, stage,
                                proto::ComparisonReport{.run = 1,
                                                        .plan_version = 1,
                                                        .step = step,
                                                        .losses = std::move(losses),
                                                        .squares = std::move(squares)}));
}

TEST(Run, ComparesCompressedLinksWithDenseOnes) {
  RunFixture f({.steps = 4000, .compresses = true});
  f.hear(f.run.start(f.now));
  uint64_t step = 0;
  while (f.written(CommandKind::Compare).empty() && step < 4000) {
    f.step_and_copy(++step, 0.1);
  }
  ASSERT_LT(step, 4000u);
  EXPECT_GE(step, 16u);
  const uint64_t at = f.written(CommandKind::Compare).back();
  while (step < at) f.step_and_copy(++step, 0.1);
  EXPECT_TRUE(f.run.comparing());
  // d = (3, 4), c = (3, 2) on two stages with a parameter each: d + c = (6, 6).
  f.now += std::chrono::seconds(1);
  EXPECT_FALSE(compare(f, 0, at, {}, {9, 36}).has_value()) << "a pass is missing";
  EXPECT_FALSE(compare(f, 0, at + 1, {}, {9, 36, 9}).has_value()) << "nobody asked";
  EXPECT_FALSE(compare(f, 0, at, {}, {9, 36, 9}).has_value()) << "without its losses";
  EXPECT_FALSE(compare(f, 0, at, {2.0, 2.5, 2.5}, {9, -36, 9}).has_value()) << "a square below zero";
  ASSERT_TRUE(compare(f, 0, at, {2.0, 2.5, 2.5}, {9, 36, 9}).has_value());
  EXPECT_FALSE(compare(f, 0, at, {2.0, 2.5, 2.5}, {9, 36, 9}).has_value()) << "twice";
  EXPECT_TRUE(f.compared_with.empty());
  ASSERT_TRUE(compare(f, 1, at, {2.0, 2.5, 2.5}, {16, 36, 4}).has_value());
  ASSERT_EQ(f.compared_with.size(), 1u);
  const proto::LinkComparison& found = f.compared_with[0];
  EXPECT_EQ(found.step, at);
  EXPECT_EQ(found.loss_dense, 2.0);
  EXPECT_EQ(found.loss, 2.5);
  EXPECT_DOUBLE_EQ(found.gradient_error, 2.0 / 5);
  EXPECT_DOUBLE_EQ(found.gradient_cosine, 17 / (5 * std::sqrt(13.0)));
  EXPECT_FALSE(f.run.comparing());
  // It took a second: the next is fifty later.
  const Instant before = f.now;
  while (f.written(CommandKind::Compare).size() < 2 && step < 4000) {
    f.step_and_copy(++step, 0.1);
  }
  EXPECT_GE(seconds(f.now - before), 48);
  EXPECT_LE(seconds(f.now - before), 53);
}

TEST(Run, DoesNotCompareDenseLinks) {
  RunFixture f({.steps = 400});
  f.hear(f.run.start(f.now));
  for (uint64_t step = 1; step <= 400; ++step) {
    f.step_and_copy(step, 1);
  }
  EXPECT_TRUE(f.written(CommandKind::Compare).empty());
}

}  // namespace
}  // namespace weft::broker
