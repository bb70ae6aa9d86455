// The script of one run, by hand-moved time: when snapshots are written, what is settled, what may be
// repeated.
#include "broker/run/run.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <limits>
#include <tuple>

#include "tests/broker/run_shape.h"

namespace weft::broker {
namespace {

using proto::Command;
using proto::CommandKind;

using test::plan_of;
using test::Shape;

class Fixture final {
 public:
  explicit Fixture(const Shape& shape, RunBegin begin = {})
      : shape_(shape), run(1, 1, plan_of(shape), std::move(begin), {}) {}

  // What came of something that the run was told.
  void hear(RunEffects effects) {
    for (RunEffect& effect : effects) std::visit([this](auto& e) { on(e); }, effect);
    const Status checked = run.check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
  }
  Status hear(Result<RunEffects> effects) {
    if (!effects) return fail(effects.error());
    hear(std::move(*effects));
    return {};
  }

  void on(const IssueCommand& e) {
    script.push_back(e.command);
    for (uint32_t s = 0; s < shape_.stages; ++s) sent[s].push_back(e.command);
  }
  void on(const TellStage& e) { sent[e.stage].push_back(e.message); }
  void on(const SayEvent& e) {
    if (e.event.kind != proto::JobEventKind::Step) return;
    steps.push_back(e.event.step);
    if (e.event.skipped) skipped.push_back(e.event.step);
    EXPECT_EQ(e.event.skipped, std::isnan(e.event.loss));
  }
  void on(const RepeatedStep& e) { repeated.push_back(e.step); }
  void on(const WholeSnapshot& e) {
    (e.is_durable ? checkpoints : rounds).push_back(e.snapshot.step);
    skipped_of[e.snapshot.step] = e.snapshot.skipped_steps;
    if (e.is_direct) direct_rounds.push_back(e.snapshot.step);
  }
  void on(const DirectCopyChanged&) { ++direct_changes; }
  void on(const DirectCopiesFailed& e) { direct_failure = e.why; }
  void on(const UploadFailed&) { ++failures; }
  void on(const TakenPrediction&) {}
  void on(const Compared& e) {
    compared_with.push_back(e.comparison);
    hear(run.go_on(now));
  }
  void on(const Divergence& e) { diverged_by = e; }
  void on(const Finished&) { is_finished = true; }
  void on(const Stopped& e) { stopped_after = e.step; }

  proto::StepReport report_of(uint64_t step, bool updated = true) const {
    proto::StepReport report{.run = 1, .plan_version = 1, .step = step};
    report.squares = {4.0};
    report.losses = {1.0, 1.0};
    report.updated = updated;
    return report;
  }
  // All stages, `took` after the one before.
  void step(uint64_t number, double took) {
    now += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(took));
    for (uint32_t s = 0; s < shape_.stages; ++s) {
      const Status status = hear(run.on_report(now, s, report_of(number)));
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
  }
  // And its copy, if there is to be one.
  void step_and_copy(uint64_t number, double took) {
    step(number, took);
    for (const CommandKind kind : {CommandKind::CopyState, CommandKind::Checkpoint}) {
      const auto copies = written(kind);
      if (std::find(copies.begin(), copies.end(), number) != copies.end()) return snapshot(number);
    }
  }
  void snapshot(uint64_t number, bool fails = false) {
    for (uint32_t s = 0; s < shape_.stages; ++s) {
      proto::CheckpointReport report{
          .run = 1, .plan_version = 1, .step = number, .tensors = copy_of(shape_, s)};
      if (fails && s == 0) report.failure = Error{ErrorCode::ResourceExhausted, "full"};
      const Status status = hear(run.on_report(now, s, report, 0));
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
  }
  std::vector<uint64_t> written(CommandKind kind) const {
    std::vector<uint64_t> steps_of;
    for (const Command& command : script)
      if (command.kind == kind) steps_of.push_back(command.step);
    return steps_of;
  }

  Shape shape_;
  Run run;
  Instant now = Instant{} + std::chrono::hours(1);
  std::vector<Command> script;
  std::map<uint32_t, std::vector<proto::Message>> sent;
  std::vector<uint64_t> steps, skipped, repeated, checkpoints, rounds;
  std::map<uint64_t, uint64_t> skipped_of;  // by step of a snapshot that is whole
  std::vector<proto::LinkComparison> compared_with;
  int failures = 0;
  bool is_finished = false;
  std::optional<uint64_t> stopped_after;
  std::optional<Divergence> diverged_by;
  int direct_changes = 0;
  std::vector<uint64_t> direct_rounds;
  std::optional<std::string> direct_failure;
};

using Steps = std::vector<uint64_t>;

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
    Fixture run({.stage_bytes = 1 << 20});
    run.hear(run.run.start(run.now));
    run.step(1, 0.1);
    run.snapshot(1);
    ASSERT_EQ(run.steps, Steps{1});
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
    EXPECT_EQ(run.steps, Steps{1});
    EXPECT_EQ(run.run.committed_step(), 1u);
  }
}

// Both stages say what came out of the step; the second one's is `second`. What each is told then.
std::vector<proto::GradientNorm> decide(Fixture& run, uint64_t step, const proto::StepReport& second) {
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

void update(Fixture& run, uint64_t step) {
  proto::StepReport report{.run = 1, .plan_version = 1, .step = step, .updated = true};
  for (uint32_t stage = 0; stage < 2; ++stage)
    EXPECT_TRUE(run.hear(run.run.on_report(run.now, stage, report)).has_value());
}

proto::StepReport bad_report(const Fixture& run, uint64_t step) {
  proto::StepReport bad = run.report_of(step, /*updated=*/false);
  bad.squares[0] = std::numeric_limits<double>::infinity();
  return bad;
}

// As RunBegin and the plan have it: small stages, so that each step has a copy.
const Shape kSkips{.stage_bytes = 1 << 20, .on_divergence = dag::OnDivergence::Skip};

TEST(SkippedSteps, LossesSquaresAndStatisticsOfOneStageDecideForAll) {
  Fixture run(kSkips);
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
  EXPECT_EQ(run.steps, (Steps{1, 2, 3, 4}));
  EXPECT_EQ(run.skipped, (Steps{2, 3, 4}));
  EXPECT_EQ(run.run.last_loss(), 1.0) << "of the last step that was learnt from";
}

TEST(SkippedSteps, NobodyUpdatesBeforeItIsDecided) {
  Fixture run(kSkips);
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.hear(run.run.on_report(run.now, 0, run.report_of(1, /*updated=*/true))).has_value());
}

TEST(SkippedSteps, AreSkippedAgainByABrokerThatWasRestarted) {
  Fixture before(kSkips);
  before.hear(before.run.start(before.now));
  ASSERT_TRUE(decide(before, 1, bad_report(before, 1)).at(0).skip);
  Fixture after(kSkips);
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
  EXPECT_EQ(after.skipped, Steps{1});
}

TEST(SkippedSteps, SnapshotsSayHowManyThereWereAndStagesHaveToAgree) {
  Fixture run(kSkips);
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
  Fixture stops({.stage_bytes = 1 << 20});
  stops.hear(stops.run.start(stops.now));
  stops.step(1, 0.1);
  report.step = report.skipped_steps = 1;
  report.tensors = copy_of(kSkips, 0);
  EXPECT_FALSE(stops.hear(stops.run.on_report(stops.now, 0, report, 0)).has_value());
  report.skipped_steps = 0;
  EXPECT_TRUE(stops.hear(stops.run.on_report(stops.now, 0, report, 0)).has_value());
}

TEST(SkippedSteps, TooManyInARowEndTheRun) {
  Fixture run({.steps = 1000, .stage_bytes = 1 << 20, .on_divergence = dag::OnDivergence::Skip});
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
  Fixture run({.steps = 1000, .stage_bytes = 1 << 20, .empty_steps = most});
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
  Fixture run({.stage_bytes = 1 << 20, .clip_norm = 1, .empty_steps = {2}});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 3; ++step) {
    for (const proto::GradientNorm& norm : decide(run, step, run.report_of(step, /*updated=*/false)))
      EXPECT_EQ(norm.skip, step == 2);
    update(run, step);
    run.snapshot(step);
  }
  EXPECT_EQ(run.skipped, Steps{2});
}

TEST(Rounds, SmallStagesAreEagerAStepIsCommittedWithItsCopy) {
  Fixture run({.stage_bytes = 1 << 20});  // 0.084 s to upload, a step of 0.1 s
  run.hear(run.run.start(run.now));
  EXPECT_TRUE(run.run.pace().is_eager());
  EXPECT_EQ(run.written(CommandKind::CopyState), (Steps{1, 2, 3, 4, 5, 6, 7, 8}));
  run.step(1, 0.1);
  run.step(2, 0.1);
  EXPECT_TRUE(run.steps.empty());
  run.snapshot(1);
  EXPECT_EQ(run.steps, (Steps{1}));
  EXPECT_EQ(run.rounds, (Steps{1}));
  run.snapshot(2);
  EXPECT_EQ(run.steps, (Steps{1, 2}));
  EXPECT_EQ(run.script.back().keep_from, 2u);
}

TEST(Rounds, FasterStepsHaveOneNowAndThenAndDoNotWaitForIt) {
  Fixture run({.stage_bytes = 1 << 20, .predicted_step = 0.02});  // an upload takes 4.2 steps
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.run.pace().is_eager());
  EXPECT_EQ(run.run.pace().steps_between(), 5u);
  for (uint64_t step = 1; step <= 12; ++step) run.step(step, 0.02);
  EXPECT_EQ(run.steps.size(), 12u) << "commits do not wait";
  EXPECT_EQ(run.written(CommandKind::CopyState), (Steps{1, 6})) << "one waits behind the one under way";
  run.snapshot(1);
  EXPECT_EQ(run.written(CommandKind::CopyState).size(), 3u);
}

TEST(Rounds, TheMeasuredStepCountsNotThePredictedOne) {
  Fixture run({.stage_bytes = 1 << 20, .predicted_step = 10});
  run.hear(run.run.start(run.now));
  EXPECT_TRUE(run.run.pace().is_eager());
  for (uint64_t step = 1; step <= 4; ++step) run.step(step, 0.01);
  EXPECT_EQ(run.run.pace().steps_between(), 9u);
}

std::vector<uint64_t> direct_of(const Fixture& run) {
  std::vector<uint64_t> steps;
  for (const Command& command : run.script)
    if (command.direct) steps.push_back(command.step);
  return steps;
}

// A step of 0.02 s, and a copy every fifth: after steps 1 (whole), 6 and 11, for somebody to fetch.
Fixture with_direct_copies(std::optional<uint64_t> checkpoint_steps = std::nullopt) {
  return Fixture({.stage_bytes = 1 << 20, .predicted_step = 0.02, .checkpoint_steps = checkpoint_steps});
}

void begin_direct(Fixture& run) {
  run.run.let_copies_go_direct(true);
  run.hear(run.run.start(run.now));
  run.step(1, 0.02);
  run.snapshot(1);
  for (uint64_t step = 2; step <= 6; ++step) run.step(step, 0.02);
}

TEST(DirectRounds, TheFirstGoesToTheBrokerTheNextToWhoFetchesThem) {
  Fixture run = with_direct_copies();
  begin_direct(run);
  EXPECT_EQ(run.rounds, Steps{1});
  EXPECT_EQ(direct_of(run).at(0), 6u);
  EXPECT_FALSE(run.run.copy_to_fetch().has_value());
  run.snapshot(6);
  EXPECT_EQ(run.direct_changes, 1);
  ASSERT_TRUE(run.run.copy_to_fetch().has_value());
  EXPECT_EQ(run.run.copy_to_fetch()->step, 6u);
  EXPECT_EQ(run.rounds, Steps{1}) << "made is not fetched";
  run.hear(run.run.on_fetched(run.now, 0, 6));
  run.hear(run.run.on_fetched(run.now, 0, 6));
  EXPECT_EQ(run.rounds, Steps{1}) << "one stage's part is";
  run.hear(run.run.on_fetched(run.now, 1, 6));
  EXPECT_EQ(run.rounds, (Steps{1, 6}));
  EXPECT_EQ(run.direct_rounds, Steps{6});
  EXPECT_FALSE(run.run.copy_to_fetch().has_value());
}

TEST(DirectRounds, WhatWasNotMadeCannotHaveBeenFetched) {
  Fixture run = with_direct_copies();
  begin_direct(run);
  for (uint32_t stage = 0; stage < 2; ++stage) run.hear(run.run.on_fetched(run.now, stage, 6));
  EXPECT_EQ(run.rounds, Steps{1});
  run.snapshot(6);
  EXPECT_EQ(run.rounds, Steps{1});
}

TEST(DirectRounds, ACheckpointThatIsWholeFirstTakesTheirPlace) {
  Fixture run = with_direct_copies(8);
  begin_direct(run);
  run.snapshot(6);
  for (uint64_t step = 7; step <= 8; ++step) run.step(step, 0.02);
  run.snapshot(8);
  EXPECT_EQ(run.checkpoints, Steps{8});
  EXPECT_EQ(run.rounds, Steps{1});
  EXPECT_FALSE(run.run.copy_to_fetch().has_value());
  run.hear(run.run.on_fetched(run.now, 0, 6));
  run.hear(run.run.on_fetched(run.now, 1, 6));
  EXPECT_EQ(run.rounds, Steps{1}) << "it is older than the checkpoint";
}

TEST(DirectRounds, WhatNobodyFetchesIsGivenUpAndTheNextOnesGoToTheBroker) {
  Fixture run = with_direct_copies();
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
  Fixture run = with_direct_copies();
  begin_direct(run);
  const Steps written = direct_of(run);
  run.run.let_copies_go_direct(false);
  run.hear(run.run.drop_direct(run.now));
  run.step(7, 0.02);
  const auto is_direct = [](const Command& command) { return command.direct; };
  const uint64_t made_by = std::find_if(run.script.begin(), run.script.end(), is_direct)->sequence;
  EXPECT_LT(run.script.back().settled, made_by);
  for (uint64_t step = 8; step <= written.back() + 1; ++step) run.step(step, 0.02);
  for (const uint64_t step : written) run.snapshot(step);
  EXPECT_EQ(run.rounds, Steps{1});
  EXPECT_EQ(run.direct_changes, 0);
  run.step(written.back() + 2, 0.02);
  EXPECT_GE(run.script.back().settled, made_by);
  EXPECT_GT(run.written(CommandKind::CopyState).back(), written.back());
  EXPECT_EQ(direct_of(run), written);
}

TEST(DirectRounds, WhoLeavesWaitsForWhatOthersHave) {
  Fixture run = with_direct_copies();
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
  Fixture before(shape);
  before.hear(before.run.start(before.now));
  before.step(1, 0.1);
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 1, .tensors = copy_of(shape, 0)};
  EXPECT_FALSE(before.hear(before.run.on_report(before.now, 0, report, 3)).has_value())
      << "of this broker's own it may not";
  Fixture after({.stage_bytes = 1 << 20});
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
  Fixture before = with_direct_copies();
  begin_direct(before);
  Fixture run = with_direct_copies();
  run.run.let_copies_go_direct(true);
  std::vector<Command> open;
  for (const Command& command : before.script)
    if (command.sequence > before.script.back().settled) open.push_back(command);
  run.run.resume(open);
  for (uint32_t stage = 0; stage < 2; ++stage)
    ASSERT_TRUE(run.hear(run.run.on_resumed(run.now, stage, before.script.back().sequence)).has_value());
  run.snapshot(6);
  ASSERT_TRUE(run.run.copy_to_fetch().has_value());
  EXPECT_EQ(run.run.copy_to_fetch()->step, 6u);
}

TEST(DirectRounds, TheNewestWhoseEveryPartIsWithSomebodyIsWhatIsLeft) {
  Fixture run = with_direct_copies();
  begin_direct(run);
  const auto all = [](uint32_t, uint64_t) { return true; };
  EXPECT_FALSE(run.run.newest_copy(all).has_value()) << "not made";
  run.snapshot(6);
  ASSERT_TRUE(run.run.newest_copy(all).has_value());
  EXPECT_EQ(run.run.newest_copy(all)->step, 6u);
  EXPECT_FALSE(run.run.newest_copy([](uint32_t stage, uint64_t) { return stage == 0; }).has_value());
}

// One pipeline and one uplink, each busy with one thing at a time. Returns the ticks (of 50 ms) that `steps`
// took.
class Machine {
 public:
  explicit Machine(Fixture& run, size_t copies_max = 1000) : run_(run), copies_max_(copies_max) {}
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
  Fixture& run_;
  size_t copies_max_;
  std::deque<uint64_t> copies_;  // written and not done
  size_t seen_ = 0;              // of the script
  uint64_t done_ = 0;
  int computing_ = 0, copying_ = 0;
};

TEST(Rounds, UplinksThatCarryLessThanTheRateDoNotHoldTheRunUp) {
  Fixture run({.steps = 1000, .stage_bytes = 1 << 20});
  run.hear(run.run.start(run.now));
  Machine machine(run);
  EXPECT_LE(machine.work(50, 2, 1), 102);
  EXPECT_TRUE(run.run.pace().is_eager()) << "0.05 s a copy, 0.1 s a step";
  machine.work(50, 2, 9);
  EXPECT_FALSE(run.run.pace().is_eager());
  EXPECT_GE(run.run.pace().steps_between(), 4u) << "0.45 s a copy";
  EXPECT_LE(machine.work(300, 2, 9), 700) << "no step waits for a copy, but for a trial now and then";
  EXPECT_LE(run.run.pace().steps_between(), 5u);
  machine.work(100, 2, 1);
  EXPECT_TRUE(run.run.pace().is_eager()) << "it carries more again";
}

// A peer keeps four copies, and does not go on before one of them is through: then steps seem to take as long
// as copies.
TEST(Rounds, CopiesInLineAtAPeerDoNotHoldTheRunUp) {
  Fixture run({.steps = 1000, .stage_bytes = 1 << 20});
  run.hear(run.run.start(run.now));
  Machine machine(run, 4);
  EXPECT_LE(machine.work(50, 2, 5), 260);
  EXPECT_LE(machine.work(400, 2, 5), 1000) << "two ticks a step, and five while it is tried again";
}

TEST(Rounds, LargeStagesAreNotWaitedForEvenWhenStepsAreLong) {
  Fixture run({.stage_bytes = 16 << 20, .predicted_step = 5});
  run.hear(run.run.start(run.now));
  EXPECT_FALSE(run.run.pace().is_eager());
  EXPECT_EQ(run.run.pace().steps_between(), 1u);
  EXPECT_EQ(run.written(CommandKind::CopyState), (Steps{1, 2})) << "one waits behind the one under way";
}

TEST(Rounds, WhereACopyTakesLongerThanTheCheckpointIntervalThereIsOnlyTheCheckpoint) {
  Fixture by_steps({.stage_bytes = 16 << 20, .predicted_step = 0.1, .checkpoint_steps = 10});
  by_steps.hear(by_steps.run.start(by_steps.now));
  EXPECT_EQ(by_steps.run.pace().steps_between(), 0u);
  EXPECT_TRUE(by_steps.written(CommandKind::CopyState).empty());
  Fixture by_time({.stage_bytes = 1'000'000'000});  // 80 s, and every 60 s a checkpoint
  by_time.hear(by_time.run.start(by_time.now));
  EXPECT_EQ(by_time.run.pace().steps_between(), 0u);
}

TEST(Rounds, AStepHasOneSnapshot) {
  Fixture run({.stage_bytes = 0, .checkpoint_steps = 4});
  run.hear(run.run.start(run.now));
  EXPECT_EQ(run.written(CommandKind::CopyState), (Steps{1, 2, 3, 5, 6, 7}));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{4, 8}));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/false));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{4, 8})) << "the last step granted has one";
}

TEST(Stop, AfterAStepThatWasOnlyCopiedTakesOneStepMore) {
  Fixture run({.stage_bytes = 0});
  run.hear(run.run.start(run.now));
  run.hear(run.run.request_stop(run.now, /*to_go_on=*/false));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{9}));
  for (uint64_t step = 1; step <= 9; ++step) {
    run.step(step, 0.1);
    run.snapshot(step);
  }
  EXPECT_EQ(run.stopped_after, 9u);
  EXPECT_EQ(run.checkpoints, (Steps{9}));
}

TEST(Stop, ToGoOnElsewhereACopyIsEnough) {
  Fixture run({.stage_bytes = 0});
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
  Fixture run({.steps = 3, .stage_bytes = 0});
  run.hear(run.run.start(run.now));
  for (uint64_t step = 1; step <= 3; ++step) {
    run.step(step, 0.1);
    run.snapshot(step, /*fails=*/true);
  }
  EXPECT_EQ(run.steps, (Steps{1, 2, 3})) << "commits do not wait for what failed";
  EXPECT_EQ(run.failures, 3);
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{3}));
  run.now += std::chrono::seconds(9);
  run.hear(run.run.on_tick(run.now));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{3}));
  run.now += std::chrono::seconds(2);
  run.hear(run.run.on_tick(run.now));
  EXPECT_EQ(run.written(CommandKind::Checkpoint), (Steps{3, 3}));
  run.snapshot(3);
  EXPECT_TRUE(run.is_finished);
}

TEST(Script, IsCountedAndSaysWhatIsSettled) {
  Fixture run({.stage_bytes = 0, .checkpoint_steps = 4});
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
  Fixture run({.stage_bytes = 0});
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
  Fixture run({.stage_bytes = 0, .clip_norm = 1});
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
  Fixture before({.stage_bytes = 0});
  before.hear(before.run.start(before.now));
  for (uint64_t step = 1; step <= 5; ++step) {
    before.step(step, 0.1);
    before.snapshot(step);
  }
  Fixture after({.stage_bytes = 0}, {.recorded = 5});
  after.run.resume(before.script);
  for (uint32_t s = 0; s < 2; ++s)
    ASSERT_TRUE(after.hear(after.run.on_resumed(after.now, s, before.script.back().sequence)).has_value());
  const uint64_t known = before.script.back().committed;
  for (uint64_t step = known + 1; step <= 7; ++step) after.step(step, 0.1);
  for (uint64_t step = before.script.back().keep_from + 1; step <= 7; ++step) after.snapshot(step);
  EXPECT_EQ(after.steps, (Steps{6, 7}));
  ASSERT_FALSE(after.script.empty());
  EXPECT_EQ(after.script.front().sequence, before.script.back().sequence + 1);
}

// Two losses of weights 2 and 0.5, of which the second is the cross entropy, over two microbatches.
TEST(Evaluation, OfSeveralLossesIsTheWeightedSumOfTheirMeans) {
  Fixture run({.steps = 1, .forward_microbatches = 2, .loss_terms = {{2, 0.5}, 1}, .apart = true});
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
  Fixture run({.stage_bytes = 0});
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

Status compare(Fixture& f, uint32_t stage, uint64_t step, std::vector<double> losses,
               std::vector<double> squares) {
  return f.hear(f.run.on_report(f.now, stage,
                                proto::ComparisonReport{.run = 1,
                                                        .plan_version = 1,
                                                        .step = step,
                                                        .losses = std::move(losses),
                                                        .squares = std::move(squares)}));
}

TEST(Run, ComparesCompressedLinksWithDenseOnes) {
  Fixture f({.steps = 4000, .compresses = true});
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
  Fixture f({.steps = 400});
  f.hear(f.run.start(f.now));
  for (uint64_t step = 1; step <= 400; ++step) {
    f.step_and_copy(step, 1);
  }
  EXPECT_TRUE(f.written(CommandKind::Compare).empty());
}

}  // namespace
}  // namespace weft::broker
