// The copies of a run's state: when they are written, who fetches them, what they hold up.
#include <gtest/gtest.h>

#include <deque>

#include "tests/broker/run_fixture.h"

namespace weft::broker {
namespace {

TEST(Rounds, SmallStagesAreEagerAStepIsCommittedWithItsCopy) {
  RunFixture run({.stage_bytes = 1 << 20});  // 0.084 s to upload, a step of 0.1 s
  run.hear(run.run.start(run.now));
  EXPECT_TRUE(run.run.rounds().pace().is_eager());
  EXPECT_EQ(run.written(CommandKind::CopyState), (StepList{1, 2, 3, 4, 5, 6, 7, 8}));
  run.step(1, 0.1);
  run.step(2, 0.1);
  EXPECT_TRUE(run.steps.empty());
  run.snapshot(1);
  EXPECT_EQ(run.steps, (StepList{1}));
  EXPECT_EQ(run.rounds, (StepList{1}));
  run.snapshot(2);
  EXPECT_EQ(run.steps, (StepList{1, 2}));
  EXPECT_EQ(run.script.back().keep_from, 2u);
}

TEST(Rounds, TheOldestUnderWaySaysSinceWhenBlobsMayBeOnTheirWay) {
  RunFixture run({.stage_bytes = 1 << 20, .predicted_step = 0.02});
  EXPECT_FALSE(run.run.rounds().under_way().uploading_since());
  const Instant first = run.now;
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 12; ++step) run.step(step, 0.02);
  ASSERT_EQ(run.written(CommandKind::CopyState), (StepList{1, 6}));
  EXPECT_EQ(run.run.rounds().under_way().uploading_since(), first);
  run.snapshot(1);
  EXPECT_EQ(run.run.rounds().under_way().uploading_since(), first)
      << "that of step 6 was asked for at once, too";
  run.snapshot(6);
  ASSERT_TRUE(run.run.rounds().under_way().uploading_since());
  EXPECT_GT(*run.run.rounds().under_way().uploading_since(), first);
}

TEST(Rounds, FasterStepsHaveOneNowAndThenAndDoNotWaitForIt) {
  RunFixture run({.stage_bytes = 1 << 20, .predicted_step = 0.02});  // an upload takes 4.2 steps
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.run.rounds().pace().is_eager());
  EXPECT_EQ(run.run.rounds().pace().steps_between(), 5u);
  for (uint64_t step = 1; step <= 12; ++step) run.step(step, 0.02);
  EXPECT_EQ(run.steps.size(), 12u) << "commits do not wait";
  EXPECT_EQ(run.written(CommandKind::CopyState), (StepList{1, 6})) << "one waits behind the one under way";
  run.snapshot(1);
  EXPECT_EQ(run.written(CommandKind::CopyState).size(), 3u);
}

TEST(Rounds, TheMeasuredStepCountsNotThePredictedOne) {
  RunFixture run({.stage_bytes = 1 << 20, .predicted_step = 10});
  run.hear(run.run.start(run.now));
  EXPECT_TRUE(run.run.rounds().pace().is_eager());
  for (uint64_t step = 1; step <= 4; ++step) run.step(step, 0.01);
  EXPECT_EQ(run.run.rounds().pace().steps_between(), 9u);
}

std::vector<uint64_t> direct_of(const RunFixture& run) {
  std::vector<uint64_t> steps;
  for (const Command& command : run.script)
    if (command.direct) steps.push_back(command.step);
  return steps;
}

// Replicas that add each step's gradients all have the state: none of it travels.
TEST(KeptRounds, ExactReplicasKeepTheirCopiesThemselves) {
  for (const bool may_stay : {false, true}) {
    RunFixture run({.stages = 3, .stage_bytes = 1 << 20, .predicted_step = 0.02, .exact_replicas = 3});
    run.run.let_copies_go_direct(true);
    run.run.let_copies_stay(may_stay);
    run.hear(run.run.start(run.now));
    for (uint64_t step = 1; step <= 3; ++step) run.step(step, 0.02);
    const auto copies = run.written(CommandKind::CopyState);
    ASSERT_FALSE(copies.empty());
    for (const Command& command : run.script)
      EXPECT_EQ(command.stays, may_stay && command.kind == CommandKind::CopyState) << command.step;
    if (!may_stay) continue;
    run.snapshot(copies.front());
    EXPECT_EQ(run.rounds, StepList{copies.front()});
    EXPECT_EQ(run.direct_rounds, StepList{copies.front()}) << "the broker has nothing of it";
    EXPECT_FALSE(run.disagreed_on.has_value());
  }
}

// What one of them alone has would be lost with it.
TEST(KeptRounds, NoCopyStaysWithReplicasThatShareSlots) {
  RunFixture run({.stages = 3,
                  .stage_bytes = 1 << 20,
                  .predicted_step = 0.02,
                  .exact_replicas = 3,
                  .shares_slots = true});
  run.run.let_copies_go_direct(false);
  run.run.let_copies_stay(true);
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 3; ++step) run.step(step, 0.02);
  const auto copies = run.written(CommandKind::CopyState);
  ASSERT_FALSE(copies.empty());
  EXPECT_TRUE(direct_of(run).empty());
  run.snapshot(copies.front());
  EXPECT_EQ(run.rounds, StepList{copies.front()}) << "the broker has it";
  EXPECT_TRUE(run.direct_rounds.empty());
}

// Whether a step has a copy anyway changes with what steps take.
TEST(KeptRounds, RunsOfExactReplicasComeToTheirEndWhateverStepsTake) {
  for (const double took : {0.001, 0.02, 0.05, 0.1, 0.3, 1.0})
    for (const double predicted : {0.005, 0.05, 0.5}) {
      SCOPED_TRACE(testing::Message() << took << " s, predicted " << predicted);
      RunFixture run({.stages = 2, .stage_bytes = 1 << 20, .predicted_step = predicted, .exact_replicas = 2});
      run.run.let_copies_stay(true);
      run.hear(run.run.start(run.now));
      for (uint64_t step = 1; step <= 40; ++step) {
        ASSERT_GE(run.run.granted_step(), step);
        run.step_and_copy(step, took);
      }
      EXPECT_TRUE(run.is_finished);
    }
}

// A stage keeps four at most, and is told with further commands which of them may go.
TEST(KeptRounds, NoMoreThanTwoAreUnderWay) {
  RunFixture run({.stages = 2, .stage_bytes = 1 << 20, .predicted_step = 0.02, .exact_replicas = 2});
  run.run.let_copies_stay(true);
  run.hear(run.run.start(run.now));
  const auto kept = [&] {
    const uint64_t from = run.script.back().keep_from;
    const auto copies = run.written(CommandKind::CopyState);
    return std::count_if(copies.begin(), copies.end(), [&](uint64_t step) { return step >= from; });
  };
  for (uint64_t step = 1; step <= 30; ++step) {
    run.step_and_copy(step, 0.02);
    EXPECT_LE(kept(), 3) << "after step " << step;
  }
  EXPECT_GT(run.rounds.size(), 3u);
}

TEST(KeptRounds, AReplicaThatHoldsOtherBytesThanMostIsNamed) {
  RunFixture run({.stages = 3, .stage_bytes = 1 << 20, .predicted_step = 0.02, .exact_replicas = 3});
  run.run.let_copies_stay(true);
  run.hear(run.run.start(run.now));
  run.step(1, 0.02);
  run.snapshot(1, /*fails=*/false, /*odd=*/1);
  ASSERT_TRUE(run.disagreed_on.has_value());
  EXPECT_EQ(run.disagreed_on->outvoted, std::vector<uint32_t>{1});
}

TEST(KeptRounds, WhereEachStepHasACopyAnywayItGoesToTheBroker) {
  RunFixture run({.stages = 2, .stage_bytes = 1 << 10, .predicted_step = 0.1, .exact_replicas = 2});
  run.run.let_copies_stay(true);
  run.hear(run.run.start(run.now));
  run.step(1, 0.1);
  ASSERT_FALSE(run.written(CommandKind::CopyState).empty());
  for (const Command& command : run.script) EXPECT_FALSE(command.stays);
}

// A step of 0.02 s, and a copy every fifth: after steps 1 (whole), 6 and 11, for somebody to fetch.
RunFixture with_direct_copies(std::optional<uint64_t> checkpoint_steps = std::nullopt) {
  return RunFixture({.stage_bytes = 1 << 20, .predicted_step = 0.02, .checkpoint_steps = checkpoint_steps});
}

void begin_direct(RunFixture& run) {
  run.run.let_copies_go_direct(true);
  run.hear(run.run.start(run.now));
  run.step(1, 0.02);
  run.snapshot(1);
  for (uint64_t step = 2; step <= 6; ++step) run.step(step, 0.02);
}

TEST(DirectRounds, TheFirstGoesToTheBrokerTheNextToWhoFetchesThem) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  EXPECT_EQ(run.rounds, StepList{1});
  EXPECT_EQ(direct_of(run).at(0), 6u);
  EXPECT_FALSE(run.run.rounds().copy_to_fetch().has_value());
  run.snapshot(6);
  EXPECT_EQ(run.direct_changes, 1);
  ASSERT_TRUE(run.run.rounds().copy_to_fetch().has_value());
  EXPECT_EQ(run.run.rounds().copy_to_fetch()->step, 6u);
  EXPECT_EQ(run.rounds, StepList{1}) << "made is not fetched";
  run.hear(run.run.on_fetched(run.now, 0, 6));
  run.hear(run.run.on_fetched(run.now, 0, 6));
  EXPECT_EQ(run.rounds, StepList{1}) << "one stage's part is";
  run.hear(run.run.on_fetched(run.now, 1, 6));
  EXPECT_EQ(run.rounds, (StepList{1, 6}));
  EXPECT_EQ(run.direct_rounds, StepList{6});
  EXPECT_FALSE(run.run.rounds().copy_to_fetch().has_value());
}

TEST(DirectRounds, WhatWasNotMadeCannotHaveBeenFetched) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  for (uint32_t stage = 0; stage < 2; ++stage) run.hear(run.run.on_fetched(run.now, stage, 6));
  EXPECT_EQ(run.rounds, StepList{1});
  run.snapshot(6);
  EXPECT_EQ(run.rounds, StepList{1});
}

TEST(DirectRounds, ACheckpointThatIsWholeFirstTakesTheirPlace) {
  RunFixture run = with_direct_copies(8);
  begin_direct(run);
  run.snapshot(6);
  for (uint64_t step = 7; step <= 8; ++step) run.step(step, 0.02);
  run.snapshot(8);
  EXPECT_EQ(run.checkpoints, StepList{8});
  EXPECT_EQ(run.rounds, StepList{1});
  EXPECT_FALSE(run.run.rounds().copy_to_fetch().has_value());
  run.hear(run.run.on_fetched(run.now, 0, 6));
  run.hear(run.run.on_fetched(run.now, 1, 6));
  EXPECT_EQ(run.rounds, StepList{1}) << "it is older than the checkpoint";
}

TEST(DirectRounds, WhatNobodyFetchesIsGivenUpAndTheNextOnesGoToTheBroker) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  run.snapshot(6);
  run.now += std::chrono::seconds(29);
  run.hear(run.run.on_tick(run.now));
  EXPECT_FALSE(run.direct_failure.has_value());
  run.now += std::chrono::seconds(2);
  run.hear(run.run.on_tick(run.now));
  ASSERT_TRUE(run.direct_failure.has_value());
  EXPECT_EQ(*run.direct_failure, "nobody has fetched that of step 6");
  for (uint64_t step = 7; step <= 40; ++step) run.step_and_copy(step, 0.02);
  EXPECT_GT(run.rounds.size() + run.checkpoints.size(), 2u);
  EXPECT_TRUE(run.direct_rounds.empty());
  EXPECT_TRUE(run.is_finished);
}

TEST(DirectRounds, OneThatIsDroppedIsNotSettledBeforeItsStagesHaveMadeIt) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  const StepList written = direct_of(run);
  run.run.let_copies_go_direct(false);
  run.hear(run.run.drop_direct(run.now));
  run.step(7, 0.02);
  const auto is_direct = [](const Command& command) { return command.direct; };
  const uint64_t made_by = std::find_if(run.script.begin(), run.script.end(), is_direct)->sequence;
  EXPECT_LT(run.script.back().settled, made_by);
  for (uint64_t step = 8; step <= written.back() + 1; ++step) run.step(step, 0.02);
  for (const uint64_t step : written) run.snapshot(step);
  EXPECT_EQ(run.rounds, StepList{1});
  EXPECT_EQ(run.direct_changes, 0);
  run.step(written.back() + 2, 0.02);
  EXPECT_GE(run.script.back().settled, made_by);
  EXPECT_GT(run.written(CommandKind::CopyState).back(), written.back());
  EXPECT_EQ(direct_of(run), written);
}

TEST(DirectRounds, WhoLeavesWaitsForWhatOthersHave) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  run.snapshot(6);
  for (uint32_t stage = 0; stage < 2; ++stage) run.hear(run.run.on_fetched(run.now, stage, 6));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/true));
  const uint64_t last = run.script.back().step;
  EXPECT_EQ(run.script.back().kind, CommandKind::Checkpoint);
  for (uint64_t step = 7; step <= last; ++step) run.step(step, 0.02);
  for (const uint64_t step : direct_of(run))
    if (step > 6) run.snapshot(step);
  EXPECT_FALSE(run.stopped_after.has_value());
  run.snapshot(last);
  EXPECT_EQ(run.stopped_after, last);
}

// What its stages uploaded may have gone with the broker that had it: the copy fails, and nobody is to blame.
TEST(Rounds, OfABrokerBeforeMayHaveLostWhatWasUploaded) {
  const Shape shape{.stage_bytes = 1 << 20};
  RunFixture before(shape);
  before.hear(before.run.start(before.now));
  before.step(1, 0.1);
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 1, .tensors = copy_of(shape, 0)};
  EXPECT_FALSE(before.hear(before.run.on_report(before.now, 0, report, 3)).has_value())
      << "of this broker's own it may not";
  RunFixture after({.stage_bytes = 1 << 20});
  after.run.resume(before.script);
  for (uint32_t stage = 0; stage < 2; ++stage)
    ASSERT_TRUE(
        after.hear(after.run.on_resumed(after.now, stage, before.script.back().sequence)).has_value());
  after.step(1, 0.1);
  ASSERT_TRUE(after.hear(after.run.on_report(after.now, 0, report, 3)).has_value());
  report.tensors = copy_of(shape, 1);
  ASSERT_TRUE(after.hear(after.run.on_report(after.now, 1, report, 0)).has_value());
  EXPECT_EQ(after.failures, 1);
  EXPECT_TRUE(after.rounds.empty());
}

TEST(DirectRounds, OutliveTheBroker) {
  RunFixture before = with_direct_copies();
  begin_direct(before);
  RunFixture run = with_direct_copies();
  run.run.let_copies_go_direct(true);
  std::vector<Command> open;
  for (const Command& command : before.script)
    if (command.sequence > before.script.back().settled) open.push_back(command);
  run.run.resume(open);
  for (uint32_t stage = 0; stage < 2; ++stage)
    ASSERT_TRUE(run.hear(run.run.on_resumed(run.now, stage, before.script.back().sequence)).has_value());
  run.snapshot(6);
  ASSERT_TRUE(run.run.rounds().copy_to_fetch().has_value());
  EXPECT_EQ(run.run.rounds().copy_to_fetch()->step, 6u);
}

TEST(DirectRounds, TheNewestWhoseEveryPartIsWithSomebodyIsWhatIsLeft) {
  RunFixture run = with_direct_copies();
  begin_direct(run);
  const auto all = [](uint32_t, uint64_t) { return true; };
  EXPECT_FALSE(run.run.rounds().newest_copy(run.run.committed_step(), all).has_value()) << "not made";
  run.snapshot(6);
  ASSERT_TRUE(run.run.rounds().newest_copy(run.run.committed_step(), all).has_value());
  EXPECT_EQ(run.run.rounds().newest_copy(run.run.committed_step(), all)->step, 6u);
  EXPECT_FALSE(run.run.rounds()
                   .newest_copy(run.run.committed_step(), [](uint32_t stage, uint64_t) { return stage == 0; })
                   .has_value());
}

// One pipeline and one uplink, each busy with one thing at a time. Returns the ticks (of 50 ms) that `steps`
// took.
class Machine {
 public:
  explicit Machine(RunFixture& run, size_t copies_max = 1000) : run_(run), copies_max_(copies_max) {}
  int work(uint64_t steps, int ticks_a_step, int ticks_a_copy) {
    const uint64_t until = done_ + steps;
    int ticks = 0;
    for (; done_ < until && ticks < 10'000; ++ticks) {
      run_.now += std::chrono::milliseconds(50);
      if (copying_ > 0 && --copying_ == 0) {
        run_.snapshot(copies_.front());
        copies_.pop_front();
      }
      const auto waiting =
          std::count_if(copies_.begin(), copies_.end(), [&](uint64_t step) { return step <= done_; });
      if (static_cast<size_t>(waiting) < copies_max_ && done_ < run_.script.back().step &&
          ++computing_ >= ticks_a_step) {
        computing_ = 0;
        run_.step(++done_, 0);
      }
      for (; seen_ < run_.script.size(); ++seen_)
        if (run_.script[seen_].kind != CommandKind::Advance) copies_.push_back(run_.script[seen_].step);
      if (copying_ == 0 && !copies_.empty() && copies_.front() <= done_) copying_ = ticks_a_copy;
    }
    return ticks;
  }

 private:
  RunFixture& run_;
  size_t copies_max_;
  std::deque<uint64_t> copies_;  // written and not done
  size_t seen_ = 0;              // of the script
  uint64_t done_ = 0;
  int computing_ = 0, copying_ = 0;
};

TEST(Rounds, UplinksThatCarryLessThanTheRateDoNotHoldTheRunUp) {
  RunFixture run({.steps = 1000, .stage_bytes = 1 << 20});
  run.hear(run.run.start(run.now));
  Machine machine(run);
  EXPECT_LE(machine.work(50, 2, 1), 102);
  EXPECT_TRUE(run.run.rounds().pace().is_eager()) << "0.05 s a copy, 0.1 s a step";
  machine.work(50, 2, 9);
  EXPECT_FALSE(run.run.rounds().pace().is_eager());
  EXPECT_GE(run.run.rounds().pace().steps_between(), 4u) << "0.45 s a copy";
  EXPECT_LE(machine.work(300, 2, 9), 700) << "no step waits for a copy, but for a trial now and then";
  EXPECT_LE(run.run.rounds().pace().steps_between(), 5u);
  machine.work(100, 2, 1);
  EXPECT_TRUE(run.run.rounds().pace().is_eager()) << "it carries more again";
}

// A peer keeps four copies, and does not go on before one of them is through: then steps seem to take as long
// as copies.
TEST(Rounds, CopiesInLineAtAPeerDoNotHoldTheRunUp) {
  RunFixture run({.steps = 1000, .stage_bytes = 1 << 20});
  run.hear(run.run.start(run.now));
  Machine machine(run, 4);
  EXPECT_LE(machine.work(50, 2, 5), 260);
  EXPECT_LE(machine.work(400, 2, 5), 1000) << "two ticks a step, and five while it is tried again";
}

TEST(Rounds, LargeStagesAreNotWaitedForEvenWhenStepsAreLong) {
  RunFixture run({.stage_bytes = 16 << 20, .predicted_step = 5});
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.run.rounds().pace().is_eager());
  EXPECT_EQ(run.run.rounds().pace().steps_between(), 1u);
  EXPECT_EQ(run.written(CommandKind::CopyState), (StepList{1, 2})) << "one waits behind the one under way";
}

TEST(Rounds, WhereACopyTakesLongerThanTheCheckpointIntervalThereIsOnlyTheCheckpoint) {
  RunFixture by_steps({.stage_bytes = 16 << 20, .predicted_step = 0.1, .checkpoint_steps = 10});
  by_steps.hear(by_steps.run.start(by_steps.now));
  EXPECT_EQ(by_steps.run.rounds().pace().steps_between(), 0u);
  EXPECT_TRUE(by_steps.written(CommandKind::CopyState).empty());
  RunFixture by_time({.stage_bytes = 1'000'000'000});  // 80 s, and every 60 s a checkpoint
  by_time.hear(by_time.run.start(by_time.now));
  EXPECT_EQ(by_time.run.rounds().pace().steps_between(), 0u);
}

TEST(Rounds, AStepHasOneSnapshot) {
  RunFixture run({.stage_bytes = 0, .checkpoint_steps = 4});
  run.hear(run.run.start(run.now));
  EXPECT_EQ(run.written(CommandKind::CopyState), (StepList{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{4, 8}));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/false));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (StepList{4, 8})) << "the last step granted has one";
}

}  // namespace
}  // namespace weft::broker
