// Snapshots by themselves: when one is due, what makes it whole, and how often links carry one.
#include "broker/run/run_rounds.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/broker/local_seats.h"
#include "tests/broker/run_shape.h"

namespace weft::broker {
namespace {

using namespace std::chrono_literals;
using test::Shape;
using Kind = Rounds::Kind;

class RoundsFixture {
 public:
  explicit RoundsFixture(const Shape& shape, const RunOptions& options = {})
      : plan(test::plan_of(shape)),
        absence(plan),
        followers(*plan),
        rounds(1, plan, {}, options, absence, followers) {
    rounds.start(now);
  }
  // Of the step, which is granted.
  proto::Command write(Kind kind, uint64_t step, uint64_t committed, bool may_be_direct = false) {
    granted = step;
    return rounds.write(
        now, kind,
        {.sequence = ++sequence, .granted = step, .committed = committed, .may_be_direct = may_be_direct});
  }
  Result<Rounds::Part> report(uint32_t stage, uint64_t step, std::optional<Error> failure = {},
                              uint32_t missing = 0) {
    return rounds.on_report(now, stage, {.run = 1, .plan_version = 1, .step = step, .failure = failure},
                            missing);
  }
  void report_all(uint64_t step) {
    for (uint32_t stage = 0; stage < 2; ++stage) EXPECT_TRUE(report(stage, step).has_value());
  }
  Rounds::Completed complete(uint64_t committed, bool moving = false) {
    auto completed = rounds.complete(now, committed, moving);
    const Status checked = rounds.check(committed, granted);
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
    return completed;
  }

  std::shared_ptr<const PlannedRun> plan;
  Absence absence;
  Followers followers;
  Rounds rounds;
  Instant now = Instant{} + 1h;
  uint64_t sequence = 0, granted = 0;
};

// 100 MB at 12.5 MB/s are eight seconds, and a step takes one.
const Shape kLarge{.steps = 100, .stage_bytes = 100'000'000, .predicted_step = 1, .checkpoint_steps = 50};

TEST(Rounds, CheckpointsAreDueAtTheirStepsAndTheEndAndCopiesBetween) {
  RoundsFixture run(kLarge);
  EXPECT_EQ(run.rounds.due(1), Kind::Copy) << "the first at once: links carry none yet";
  run.write(Kind::Copy, 1, 0);
  EXPECT_EQ(run.rounds.due(1), std::nullopt) << "a step has one";
  EXPECT_EQ(run.rounds.next_copy(1), 9u);
  EXPECT_EQ(run.rounds.due(8), std::nullopt);
  EXPECT_EQ(run.rounds.due(9), Kind::Copy);
  run.write(Kind::Copy, 9, 1);
  EXPECT_EQ(run.rounds.due(49), std::nullopt) << "two are under way";
  EXPECT_EQ(run.rounds.due(50), Kind::Checkpoint);
  EXPECT_EQ(run.rounds.due(100), Kind::Checkpoint);
}

TEST(Rounds, TimeMakesACheckpointDueWhereTheJobNamesNoSteps) {
  RoundsFixture run({.predicted_step = 1});
  EXPECT_FALSE(run.rounds.ask_for_checkpoint(run.now + 59s, 3));
  EXPECT_TRUE(run.rounds.ask_for_checkpoint(run.now + 60s, 3));
  EXPECT_EQ(run.rounds.due(3), Kind::Checkpoint);
  run.now += 60s;
  run.write(Kind::Checkpoint, 3, 3);
  EXPECT_FALSE(run.rounds.ask_for_checkpoint(run.now + 60s, 4)) << "one is under way";
}

TEST(Rounds, OneIsTakenWhenEveryStageHasReportedItAndItsStepIsCommitted) {
  RoundsFixture run(kLarge);
  run.write(Kind::Copy, 4, 0);
  ASSERT_TRUE(run.report(0, 4).has_value());
  EXPECT_TRUE(run.rounds.is_asked(1, 4));
  EXPECT_FALSE(run.rounds.is_asked(0, 4)) << "it has answered";
  EXPECT_EQ(run.rounds.under_way().missing_reports().stages, std::vector<uint32_t>{1});
  EXPECT_TRUE(run.complete(4).whole.empty());
  ASSERT_TRUE(run.report(1, 4).has_value());
  EXPECT_TRUE(run.complete(3).whole.empty()) << "its step is not committed";
  const auto completed = run.complete(4);
  ASSERT_EQ(completed.whole.size(), 1u);
  EXPECT_EQ(completed.whole[0].snapshot.step, 4u);
  EXPECT_FALSE(completed.whole[0].is_durable);
  EXPECT_EQ(run.rounds.checkpointed(), 0u);
  EXPECT_EQ(run.rounds.keep_from(), 4u);
  EXPECT_TRUE(run.rounds.is_idle() && run.rounds.is_settled(1));
}

TEST(Rounds, SmallStatesGateTheirSteps) {
  RoundsFixture run({.stage_bytes = 1 << 10, .predicted_step = 1});
  ASSERT_TRUE(run.rounds.pace().is_eager());
  run.write(Kind::Copy, 1, 0);
  EXPECT_TRUE(run.rounds.under_way().is_gated(1));
  EXPECT_FALSE(run.rounds.under_way().is_gated(2));
  EXPECT_TRUE(run.rounds.under_way().hold_the_run_up());
  run.report_all(1);
  EXPECT_FALSE(run.rounds.under_way().is_gated(1));
}

TEST(Rounds, WhatFailedIsNoRecoveryPointAndALastOneIsTriedAgain) {
  RoundsFixture run(kLarge);
  run.write(Kind::Checkpoint, 50, 50);
  ASSERT_TRUE(run.report(0, 50).has_value());
  const auto part = run.report(1, 50, Error{ErrorCode::ResourceExhausted, "full"});
  ASSERT_TRUE(part.has_value() && part->failure.has_value());
  EXPECT_TRUE(run.complete(50).whole.empty());
  EXPECT_TRUE(run.rounds.is_idle());
  EXPECT_FALSE(run.rounds.take_retry(run.now + 9s));
  EXPECT_TRUE(run.rounds.take_retry(run.now + 10s));
  EXPECT_FALSE(run.rounds.take_retry(run.now + 20s)) << "once";
}

int64_t saved_of(const RoundsFixture& run) {
  const auto saving = run.rounds.saving();
  return saving ? saving->saved.value : -1;
}

TEST(Rounds, ACheckpointIsSavedAsFarAsItsStagesSay) {
  RoundsFixture run(kLarge);
  run.write(Kind::Checkpoint, 50, 49);
  EXPECT_FALSE(run.rounds.saving()) << "its step is not done yet";
  run.rounds.on_saving(0, 50, {30'000'000});
  run.rounds.on_saving(1, 50, {10'000'000});
  ASSERT_TRUE(run.rounds.saving());
  EXPECT_EQ(run.rounds.saving()->step, 50u);
  EXPECT_EQ(run.rounds.saving()->bytes.value, 200'000'000);
  EXPECT_EQ(saved_of(run), 40'000'000);
  run.rounds.on_saving(0, 50, {20'000'000});
  EXPECT_EQ(saved_of(run), 40'000'000) << "what is sent anew was there before";
  run.rounds.on_saving(0, 50, {int64_t{1} << 60});
  EXPECT_EQ(saved_of(run), 110'000'000) << "no more than the stage has";
  run.rounds.on_saving(1, 49, {90'000'000});
  EXPECT_EQ(saved_of(run), 110'000'000) << "of no snapshot";
  ASSERT_TRUE(run.report(1, 50));
  EXPECT_EQ(saved_of(run), 200'000'000) << "all of what is reported";
  ASSERT_TRUE(run.report(0, 50));
  run.complete(50);
  EXPECT_FALSE(run.rounds.saving());
}

TEST(Rounds, OfAStageThatSaysNothingAReportIsAllOrNothing) {
  RoundsFixture run(kLarge);
  run.write(Kind::Checkpoint, 50, 50);
  ASSERT_TRUE(run.report(0, 50));
  EXPECT_EQ(saved_of(run), 100'000'000);
}

TEST(Rounds, TheOldestCheckpointIsToldAndNoCopy) {
  RoundsFixture run(kLarge);
  run.write(Kind::Copy, 49, 49);
  run.rounds.on_saving(0, 49, {5});
  EXPECT_FALSE(run.rounds.saving());
  run.write(Kind::Checkpoint, 50, 50);
  run.write(Kind::Checkpoint, 100, 50);
  run.rounds.on_saving(0, 100, {7});
  EXPECT_EQ(run.rounds.saving()->step, 100u) << "the other one has not begun";
  run.rounds.on_saving(1, 50, {3});
  EXPECT_EQ(run.rounds.saving()->step, 50u);
  EXPECT_EQ(saved_of(run), 3);
}

TEST(Rounds, OfOneThatFailedNothingIsSavedUntilItIsTriedAgain) {
  RoundsFixture run(kLarge);
  run.write(Kind::Checkpoint, 100, 100);
  run.rounds.on_saving(0, 100, {30'000'000});
  ASSERT_TRUE(run.report(1, 100, Error{ErrorCode::ResourceExhausted, "full"}));
  EXPECT_FALSE(run.rounds.saving());
  ASSERT_TRUE(run.report(0, 100));
  run.complete(100);
  run.write(Kind::Checkpoint, 100, 100);
  EXPECT_FALSE(run.rounds.saving());
  run.rounds.on_saving(0, 100, {60'000'000});
  EXPECT_EQ(saved_of(run), 60'000'000);
}

TEST(Rounds, BlobsThatAreNotThereAreALieOrWentWithABroker) {
  RoundsFixture run(kLarge);
  run.write(Kind::Copy, 4, 0);
  EXPECT_FALSE(run.report(0, 4, {}, /*missing=*/2).has_value());
  run.rounds.on_resumed(0);
  const auto part = run.report(0, 4, {}, /*missing=*/2);
  ASSERT_TRUE(part.has_value() && part->failure.has_value());
  EXPECT_EQ(part->failure->code, ErrorCode::NotFound);
}

TEST(Rounds, StagesThatSkippedOtherStepsMakeNoSnapshotTogether) {
  RoundsFixture run(kLarge);
  run.write(Kind::Copy, 4, 0);
  ASSERT_TRUE(run.report(0, 4).has_value());
  const auto part = run.rounds.on_report(
      run.now, 1, {.run = 1, .plan_version = 1, .step = 4, .tensors = {}, .skipped_steps = 1}, 0);
  ASSERT_TRUE(part.has_value() && part->failure.has_value());
  EXPECT_EQ(part->failure->code, ErrorCode::Corrupted);
}

TEST(Rounds, ADirectCopyIsMadeThenFetched) {
  RoundsFixture run(kLarge);
  EXPECT_FALSE(run.write(Kind::Copy, 1, 1, /*may_be_direct=*/true).direct) << "the first one";
  run.report_all(1);
  run.complete(1);
  EXPECT_TRUE(run.write(Kind::Copy, 9, 9, /*may_be_direct=*/true).direct);
  EXPECT_FALSE(run.rounds.copy_to_fetch().has_value());
  EXPECT_FALSE(run.report(0, 9)->is_complete);
  EXPECT_TRUE(run.report(1, 9)->is_complete);
  ASSERT_TRUE(run.rounds.copy_to_fetch().has_value());
  EXPECT_FALSE(run.rounds.unfetched(run.now + 80s).has_value()) << "ten times what one takes";
  EXPECT_EQ(run.rounds.unfetched(run.now + 81s), 9u);
  EXPECT_FALSE(run.rounds.on_fetched(run.now, 0, 9));
  EXPECT_FALSE(run.rounds.on_fetched(run.now, 0, 9)) << "by another peer";
  EXPECT_TRUE(run.rounds.on_fetched(run.now, 1, 9));
  const auto completed = run.complete(9);
  ASSERT_EQ(completed.whole.size(), 1u);
  EXPECT_TRUE(completed.whole[0].is_direct);
  EXPECT_FALSE(run.rounds.has_last(9, /*moving=*/false)) << "it is no checkpoint";
  EXPECT_FALSE(run.rounds.has_last(9, /*moving=*/true)) << "whoever leaves takes it along";
}

TEST(Rounds, ADirectCopyThatIsOvertakenIsDropped) {
  RoundsFixture run(kLarge);
  run.write(Kind::Copy, 1, 1);
  run.report_all(1);
  run.complete(1);
  run.write(Kind::Copy, 9, 9, /*may_be_direct=*/true);
  run.write(Kind::Checkpoint, 50, 50);
  run.report_all(50);
  const auto completed = run.complete(50);
  EXPECT_EQ(completed.dropped, 1u);
  EXPECT_TRUE(completed.whole.empty()) << "stages have yet to carry the first command out";
  EXPECT_FALSE(run.report(0, 9)->is_dropped);
  EXPECT_TRUE(run.report(1, 9)->is_dropped);
  ASSERT_EQ(run.complete(50).whole.size(), 1u);
  EXPECT_EQ(run.rounds.checkpointed(), 50u);
}

TEST(Rounds, DirectCopiesAreGivenUpAfterAFewFailuresInARow) {
  RoundsFixture run(kLarge);
  const Error forgotten{ErrorCode::NotFound, "it has let it go"};
  EXPECT_FALSE(run.rounds.give_up_direct(forgotten));
  EXPECT_FALSE(run.rounds.give_up_direct(forgotten));
  EXPECT_TRUE(run.rounds.give_up_direct(forgotten));
  RoundsFixture other(kLarge);
  EXPECT_TRUE(other.rounds.give_up_direct({ErrorCode::Timeout, "nobody comes"})) << "at once";
  other.write(Kind::Copy, 1, 1, true);
  EXPECT_FALSE(other.write(Kind::Copy, 9, 9, true).direct);
}

TEST(Rounds, ARunEndsWithASnapshotOfItsLastStep) {
  using Last = Rounds::Last;
  RoundsFixture run(kLarge);
  EXPECT_EQ(run.rounds.last_needed(4, false), Last::Now);
  run.write(Kind::Copy, 4, 4);
  EXPECT_EQ(run.rounds.last_needed(4, /*moving=*/true), Last::IsWritten) << "any will do";
  EXPECT_EQ(run.rounds.last_needed(4, /*moving=*/false), Last::AfterAnother);
  run.report_all(4);
  run.complete(4);
  EXPECT_EQ(run.rounds.last_needed(4, /*moving=*/false), Last::AfterAnother);
  run.write(Kind::Checkpoint, 5, 4);
  EXPECT_EQ(run.rounds.last_needed(5, /*moving=*/false), Last::IsWritten);
}

TEST(Rounds, AfterARestartWhatIsNotDurableIsAskedForAgain) {
  RoundsFixture run(kLarge);
  run.rounds.resume(/*keep_from=*/4);
  run.rounds.resume({.kind = proto::CommandKind::CopyState, .step = 12, .sequence = 6}, /*recorded=*/4);
  EXPECT_TRUE(run.rounds.is_asked(0, 12) && run.rounds.is_asked(1, 12));
  EXPECT_EQ(run.rounds.under_way().sequences(), std::vector<uint64_t>{6});
  EXPECT_EQ(run.rounds.keep_from(), 4u);
  EXPECT_TRUE(run.rounds.check(/*committed=*/4, /*granted=*/12).has_value());
  EXPECT_FALSE(run.rounds.check(/*committed=*/4, /*granted=*/11).has_value()) << "never granted";
  EXPECT_FALSE(run.rounds.check(/*committed=*/3, /*granted=*/12).has_value()) << "forgotten too early";
}

TEST(CopyPace, CopiesComeAsOftenAsTheRateCarriesThemAndNoOftenerThanCheckpoints) {
  const auto pace_of = [](const Shape& shape, RunOptions options = {}) {
    return CopyPace(*test::plan_of(shape), options);
  };
  EXPECT_EQ(pace_of(kLarge).steps_between(), 8u);
  EXPECT_FALSE(pace_of(kLarge).is_eager());
  EXPECT_EQ(pace_of(kLarge, {.copy_rate = 25'000'000}).steps_between(), 4u);
  EXPECT_EQ(pace_of(kLarge, {.copies_state = false}).steps_between(), 0u);
  Shape often = kLarge;
  often.checkpoint_steps = 8;
  EXPECT_EQ(pace_of(often).steps_between(), 0u);
  EXPECT_TRUE(pace_of({.stage_bytes = 1 << 10}).is_eager());
  EXPECT_FALSE(pace_of({.stage_bytes = 1 << 10}).under_way_max().has_value());
  EXPECT_EQ(pace_of(kLarge).under_way_max(), 2u);
  EXPECT_EQ(pace_of(kLarge, {.window_steps = 1}).under_way_max(), 1u);
}

// A copy of the state is what training changes: a frozen weight is loaded once, and copied never.
TEST(CopyPace, FrozenWeightsDoNotMakeCopiesRarer) {
  const Shape small{.stage_bytes = 1 << 10, .predicted_step = 1};
  Shape fine_tuned = small;
  fine_tuned.frozen_bytes = 100'000'000;
  const auto plan = test::plan_of(fine_tuned);
  EXPECT_EQ(largest_copied_bytes(*plan), 1 << 10);
  EXPECT_EQ(largest_loaded_bytes(*plan), 100'000'000 + (1 << 10));
  EXPECT_TRUE(CopyPace(*plan, {}).is_eager());
  EXPECT_EQ(CopyPace(*plan, {}).steps_between(), CopyPace(*test::plan_of(small), {}).steps_between());
}

TEST(CopyPace, UploadsThatTakeLongEndEagerCommitsForAWhile) {
  CopyPace pace(*test::plan_of({.stage_bytes = 1 << 10, .predicted_step = 1}), {});
  Instant now = Instant{} + 1h;
  pace.on_step(1);
  // Each waited for the one before, and took three steps.
  const auto upload = [&] {
    const Instant ready = now - 4s;
    now += 3s;
    pace.on_upload({.ready_at = ready, .gates = true}, now);
  };
  upload();
  EXPECT_TRUE(pace.is_eager()) << "the first one alone shows the way there and back, too";
  for (int i = 0; i < 10 && pace.is_eager(); ++i) upload();
  EXPECT_FALSE(pace.is_eager());
  EXPECT_GE(pace.steps_between(), 2u);
  now += 1h;
  upload();
  upload();
  EXPECT_TRUE(pace.is_eager()) << "it is tried again";
  EXPECT_TRUE(pace.check().has_value());
}

TEST(CopyPace, StepsAreSmoothedAndWhatTookNoTimeDoesNotCount) {
  CopyPace pace(*test::plan_of({.predicted_step = 5}), {});
  EXPECT_EQ(pace.step_seconds(), 5);
  pace.on_step(0);
  EXPECT_EQ(pace.step_seconds(), 5);
  pace.on_step(1);
  EXPECT_EQ(pace.step_seconds(), 1);
  pace.on_step(2);
  EXPECT_DOUBLE_EQ(pace.step_seconds(), 1.1);
}

// Two replicas of a stage each, which agree every three steps of a tenth of a second.
class LocalRounds {
 public:
  explicit LocalRounds(uint64_t copy_rate)
      : plan(test::local_plan({.replicas = 2, .stages = 1, .every = 3, .steps = 60})),
        absence(plan),
        followers(*plan),
        rounds(1, plan, {}, {.copy_rate = copy_rate}, absence, followers) {
    rounds.start(now);
  }
  proto::Command write(uint64_t step) {
    return rounds.write(now, Kind::Copy, {.sequence = ++sequence, .granted = step, .committed = step});
  }
  Rounds::Part report(uint32_t stage, uint64_t step, std::optional<Error> failure = {}) {
    const auto part = rounds.on_report(
        now, stage, {.run = 1, .plan_version = 1, .step = step, .failure = std::move(failure)}, 1);
    EXPECT_TRUE(part.has_value());
    return part.value_or(Rounds::Part{});
  }
  std::shared_ptr<const PlannedRun> plan;
  Absence absence;
  Followers followers;
  Rounds rounds;
  Instant now = Instant{} + 1h;
  uint64_t sequence = 0;
};

TEST(Rounds, CopiesStayWithReplicasWhereLinesAreSlow) {
  LocalRounds fast(1 << 20);
  fast.rounds.let_stay(true);
  EXPECT_FALSE(fast.rounds.do_stay());
  EXPECT_FALSE(fast.write(3).direct);

  LocalRounds slow(1);
  EXPECT_FALSE(slow.rounds.do_stay()) << "somebody cannot be reached";
  slow.rounds.let_stay(true);
  ASSERT_TRUE(slow.rounds.do_stay());
  EXPECT_EQ(slow.rounds.next_copy(3), 3u);
  const proto::Command command = slow.write(3);
  EXPECT_TRUE(command.direct && command.stays);
  EXPECT_EQ(slow.rounds.copy_to_fetch(), std::nullopt) << "nobody else is to have it";
  EXPECT_FALSE(slow.rounds.has_last(3, /*moving=*/true));
  EXPECT_FALSE(slow.report(0, 3).is_direct);
  EXPECT_TRUE(slow.rounds.complete(slow.now, 3, false).whole.empty());
  slow.report(1, 3);
  const auto completed = slow.rounds.complete(slow.now, 3, false);
  ASSERT_EQ(completed.whole.size(), 1u);
  EXPECT_TRUE(completed.whole[0].is_direct && completed.whole[0].stays && !completed.whole[0].is_durable);
  EXPECT_TRUE(slow.rounds.has_last(3, /*moving=*/true)) << "each takes what it has along";
  EXPECT_FALSE(slow.rounds.has_last(3, /*moving=*/false)) << "a run that ends needs a checkpoint";
  // One that could not be made is none, and the next one is tried.
  slow.write(6);
  slow.report(0, 6);
  EXPECT_TRUE(slow.report(1, 6, Error{ErrorCode::ResourceExhausted, "no memory"}).failure.has_value());
  EXPECT_TRUE(slow.rounds.complete(slow.now, 6, false).whole.empty());
  EXPECT_TRUE(slow.rounds.is_idle());
  EXPECT_TRUE(slow.write(9).stays);
  // A broker after this one knows it from the command.
  LocalRounds again(1 << 20);
  again.rounds.let_stay(true);
  again.rounds.resume(command, 0);
  EXPECT_TRUE(again.rounds.do_stay());
  again.report(0, 3);
  again.report(1, 3);
  EXPECT_EQ(again.rounds.complete(again.now, 3, false).whole.size(), 1u);
}

// The script keeps all that follows a LeaveOut, a snapshot that failed and was written again included.
TEST(LocalRounds, OfTwoSnapshotsOfAStepALaterBrokerKnowsTheLast) {
  LocalRounds again(1 << 20);
  for (const uint64_t sequence : {4, 5})
    again.rounds.resume(
        proto::Command{.kind = proto::CommandKind::Checkpoint, .step = 3, .sequence = sequence}, 0);
  EXPECT_TRUE(again.rounds.check(3, 3).has_value());
  EXPECT_TRUE(again.rounds.is_settled(4));
  EXPECT_FALSE(again.rounds.is_settled(5));
}

// It had agreed and made its part, the others agree without it: their weights are others than its.
TEST(LocalRounds, WhatWhoeverIsLeftOutHasSaidCountsNoMore) {
  const dag::StateKey key = dag::of_initializer("w");
  const dag::TensorSpec spec{dag::DType::F32, dag::Shape({4})};
  const auto report = [&](uint8_t weight) {
    return proto::CheckpointReport{.step = 3, .tensors = {{key, spec, Digest{{weight}}}}};
  };
  for (const bool forgets : {true, false}) {
    Round round{.step = 3};
    round.begin(3, {0, 1, 2});
    ASSERT_TRUE(round.take({}, 1, report(7), 0).has_value());
    round.leave_out(1, forgets);
    for (const uint32_t stage : {0u, 2u}) ASSERT_TRUE(round.take({}, stage, report(8), 0).has_value());
    EXPECT_TRUE(round.is_whole());
    EXPECT_EQ(round.disagreement().has_value(), !forgets);
    ASSERT_EQ(round.tensors.size(), 1u);
    EXPECT_EQ(round.tensors[0].sha256, (Digest{{forgets ? uint8_t{8} : uint8_t{7}}}));
  }
}

// Of two nobody can tell who is wrong; of more it is who holds other bytes than most, once all have said
// theirs.
TEST(LocalRounds, WhoHoldsOtherBytesThanMostIsOutvoted) {
  const dag::StateKey key = dag::of_initializer("w");
  const dag::TensorSpec spec{dag::DType::F32, dag::Shape({4})};
  const auto said = [&](const std::vector<uint8_t>& weights, size_t replicas, std::vector<bool> follow = {}) {
    Round round{.step = 3};
    std::vector<uint32_t> replica_of(replicas);
    std::iota(replica_of.begin(), replica_of.end(), 0);
    round.begin(replicas, replica_of, std::move(follow));
    for (uint32_t stage = 0; stage < weights.size(); ++stage)
      EXPECT_TRUE(
          round
              .take({}, stage,
                    proto::CheckpointReport{.step = 3, .tensors = {{key, spec, Digest{{weights[stage]}}}}}, 0)
              .has_value());
    return round.disagreement();
  };
  EXPECT_FALSE(said({7, 7, 7}, 3).has_value());
  EXPECT_FALSE(said({7, 8}, 3).has_value()) << "the third has yet to say";
  ASSERT_TRUE(said({7, 8}, 2).has_value());
  EXPECT_TRUE(said({7, 8}, 2)->outvoted.empty());
  ASSERT_TRUE(said({7, 8, 8}, 3).has_value());
  EXPECT_EQ(said({7, 8, 8}, 3)->outvoted, std::vector<uint32_t>{0});
  EXPECT_EQ(said({7, 8, 8}, 3)->stage, 0u);
  EXPECT_EQ(said({7, 8, 7, 9, 7}, 5)->outvoted, (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(said({7, 8, 7, 8}, 4)->outvoted.empty()) << "two of four are not most";
  // Who follows was given what the others have: its word does not count beside theirs.
  EXPECT_EQ(said({7, 8}, 2, {false, true})->outvoted, std::vector<uint32_t>{1});
  EXPECT_EQ(said({8, 7, 8}, 3, {true, false, true})->outvoted, (std::vector<uint32_t>{0, 2}));
  EXPECT_TRUE(said({7, 8, 8}, 3, {false, false, true})->outvoted.empty()) << "of two nobody can tell";
}

}  // namespace
}  // namespace weft::broker
