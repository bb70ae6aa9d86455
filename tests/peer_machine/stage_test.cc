// The rules of a stage at work: sequence numbers, what neighbours may send, what reports hold.
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using peer::StageMachine;
using proto::Command;
using proto::CommandKind;

StageMachine machine_of(const StageSpec& spec = {}) {
  return StageMachine(std::make_shared<const proto::AssignStage>(assignment(spec)));
}
Command advance(uint64_t sequence, uint64_t step) {
  return {.run = 1, .plan_version = 1, .kind = CommandKind::Advance, .step = step, .sequence = sequence};
}

TEST(Sequence, CommandsAreConsecutive) {
  StageMachine machine = machine_of();
  EXPECT_FALSE(machine.on_command(advance(0, 1)).has_value()) << "without a number";
  EXPECT_FALSE(machine.on_command(advance(2, 1)).has_value()) << "a gap at the beginning";
  EXPECT_TRUE(machine.on_command(advance(1, 1)).has_value());
  EXPECT_FALSE(machine.on_command(advance(3, 2)).has_value()) << "a gap";
  EXPECT_EQ(machine.last_sequence(), 1u);
  EXPECT_TRUE(machine.on_command(advance(2, 2)).has_value());
  EXPECT_EQ(machine.last_sequence(), 2u);
}

// A broker that was restarted has no command any more that is settled, and the stage had nothing to report
// of.
TEST(Sequence, WhatIsSettledNeedNotCome) {
  StageMachine machine = machine_of();
  Command later = advance(4, 2);
  later.settled = 2;
  EXPECT_FALSE(machine.on_command(later).has_value()) << "the third is not";
  later.settled = 3;
  EXPECT_TRUE(machine.on_command(later).has_value());
  EXPECT_EQ(machine.last_sequence(), 4u);
}

TEST(Sequence, ARepeatedCommandIsIgnored) {
  StageMachine machine = machine_of();
  EXPECT_TRUE(machine.on_command(advance(1, 2)).has_value());
  EXPECT_TRUE(machine.on_command(advance(1, 2)).has_value());
  EXPECT_EQ(machine.last_sequence(), 1u);
}

TEST(Sequence, ARefusedCommandDoesNotCount) {
  StageMachine machine = machine_of();
  EXPECT_FALSE(machine.on_command(advance(1, 101)).has_value()) << "beyond the last step";
  EXPECT_EQ(machine.last_sequence(), 0u);
}

TEST(Sequence, AnEvaluationOfWhichNothingIsHereCounts) {
  StageMachine machine = machine_of();
  Command evaluate{.run = 1, .plan_version = 1, .kind = CommandKind::Evaluate, .microbatches = 2};
  evaluate.sequence = 1;
  evaluate.settled = 0;
  EXPECT_TRUE(machine.on_command(evaluate).has_value());
  EXPECT_EQ(machine.last_sequence(), 1u);
  EXPECT_FALSE(machine.next_task(kStart).has_value());
}

TEST(Sequence, SnapshotsAreOfTheLastStepGranted) {
  StageMachine machine = machine_of();
  EXPECT_TRUE(machine.on_command(advance(1, 2)).has_value());
  Command copy{.run = 1, .plan_version = 1, .kind = CommandKind::CopyState, .step = 1, .sequence = 2};
  EXPECT_FALSE(machine.on_command(copy).has_value());
  copy.step = 2;
  EXPECT_TRUE(machine.on_command(copy).has_value());
}

// Everything that a stage runs for three steps, a checkpoint and an evaluation, with `ahead` tasks handed out
// at once: what, in which order, and what was reported in between.
std::vector<std::string> sequence_of(double clip_norm, uint32_t ahead) {
  const auto assigned = std::make_shared<const proto::AssignStage>(
      assignment({.clip_norm = clip_norm, .reads_data = false, .evaluates = true}));
  StageMachine machine(assigned, {.script = {.tasks_ahead = ahead}});
  auto command = [&, sequence = uint64_t{0}](CommandKind kind, uint64_t step,
                                             uint32_t microbatches = 0) mutable {
    const Command next{.run = 1,
                       .plan_version = 1,
                       .kind = kind,
                       .step = step,
                       .microbatches = microbatches,
                       .sequence = ++sequence};
    EXPECT_TRUE(machine.on_command(next).has_value());
  };
  command(CommandKind::Advance, 2);
  command(CommandKind::Checkpoint, 2);
  command(CommandKind::Evaluate, 2, 3);
  command(CommandKind::Advance, 3);
  command(CommandKind::Finish, 3);
  std::vector<std::string> seen;
  std::deque<peer::Task> running;
  Instant now = kStart;
  for (;;) {
    while (const auto task = machine.next_task(now)) running.push_back(*task);
    EXPECT_LE(running.size(), ahead);
    if (running.empty()) break;
    const peer::Task task = running.front();
    running.pop_front();
    seen.push_back(std::to_string(static_cast<int>(task.kind)) + " of command " +
                   std::to_string(task.sequence) + ", step " + std::to_string(task.key.step) +
                   ", microbatch " + std::to_string(task.key.microbatch) + ", segment " +
                   std::to_string(task.segment));
    now += std::chrono::milliseconds(10);
    peer::TaskOutcome outcome;
    outcome.busy = std::chrono::milliseconds(10);
    outcome.loss = {1};
    machine.on_task_done(now, task, outcome);
    for (const proto::Message& message : machine.take_reports()) {
      seen.emplace_back(proto::name_of(message));
      const auto* report = std::get_if<proto::StepReport>(&message);
      if (report == nullptr) continue;
      seen.back() += " of step " + std::to_string(report->step);
      if (report->updated) seen.back() += ", " + std::to_string(std::lround(report->seconds * 1e3)) + " ms";
      if (report->updated) continue;
      EXPECT_TRUE(
          machine.on_norm({.run = 1, .plan_version = 1, .step = report->step, .norm = 1}).has_value());
    }
  }
  EXPECT_TRUE(machine.is_idle());
  EXPECT_EQ(machine.completed_step(), 3u);
  return seen;
}

TEST(Tasks, AreTheSameHoweverManyWaitAhead) {
  for (const double clip_norm : {0.0, 1.0}) {
    const auto alone = sequence_of(clip_norm, 1);
    EXPECT_GT(alone.size(), 15u);
    for (const uint32_t ahead : {2u, 3u, 100u}) EXPECT_EQ(sequence_of(clip_norm, ahead), alone) << ahead;
  }
}

TEST(Norm, OfACompletedStepIsIgnored) {
  Shell shell;
  shell.join();
  shell.load(assignment({.clip_norm = 1}));
  shell.command(CommandKind::Advance, 1);
  shell.work();
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 1u);
  for (int i = 0; i < 2; ++i) {
    shell.say(proto::GradientNorm{1, 1, 1, 0.5});
    shell.work();
  }
  ASSERT_EQ(shell.told_of<proto::StepReport>().size(), 2u);
  EXPECT_TRUE(shell.told_of<proto::StepReport>()[1].updated);
  EXPECT_TRUE(shell.told_of<proto::StageFailed>().empty());
  shell.say(proto::GradientNorm{1, 1, 9, 0.5});
  EXPECT_EQ(shell.told_of<proto::StageFailed>().size(), 1u) << "of a step that was not granted";
}

// What of its run the broker decides, the tasks say: what an update counts as, and how many a snapshot lacks.
TEST(SkippedSteps, AreCountedInUpdatesAndSnapshotsAlsoFromWhereTheStageBegan) {
  auto assign = assignment({.after_step = 10, .reads_data = false});
  assign.training.on_divergence = dag::OnDivergence::Skip;
  assign.skipped_steps = 4;
  StageMachine machine(std::make_shared<const proto::AssignStage>(assign), {.script = {.tasks_ahead = 3}});
  uint64_t sequence = 0;
  for (uint64_t step = 11; step <= 13; ++step)
    for (const CommandKind kind : {CommandKind::Advance, CommandKind::CopyState})
      EXPECT_TRUE(
          machine
              .on_command({.run = 1, .plan_version = 1, .kind = kind, .step = step, .sequence = ++sequence})
              .has_value());
  std::vector<uint64_t> updates, snapshots;
  std::deque<peer::Task> running;
  for (;;) {
    while (const auto task = machine.next_task(kStart)) running.push_back(*task);
    if (running.empty()) break;
    const peer::Task task = running.front();
    running.pop_front();
    if (task.kind == peer::TaskKind::Update) {
      EXPECT_FALSE(task.with_squares);
      EXPECT_EQ(task.skip, task.key.step == 12);
      updates.push_back(task.skipped_steps);
    }
    if (task.kind == peer::TaskKind::Snapshot) snapshots.push_back(task.skipped_steps);
    peer::TaskOutcome outcome;
    if (task.kind == peer::TaskKind::Squares && task.key.step == 12)
      outcome.statistics = {1.0, std::numeric_limits<double>::infinity()};
    machine.on_task_done(kStart, task, outcome);
    for (const proto::Message& message : machine.take_reports()) {
      const auto& report = std::get<proto::StepReport>(message);
      EXPECT_EQ(report.statistics_diverged, report.step == 12 && !report.updated);
      if (report.updated) continue;
      EXPECT_TRUE(
          machine
              .on_norm(
                  {.run = 1, .plan_version = 1, .step = report.step, .norm = 1, .skip = report.step == 12})
              .has_value());
    }
  }
  EXPECT_EQ(machine.completed_step(), 13u);
  EXPECT_EQ(updates, (std::vector<uint64_t>{4, 4, 5}));
  EXPECT_EQ(snapshots, (std::vector<uint64_t>{4, 5, 5}));
}

// Of steps that the assignment names no answer is waited for, unless the job has its norms clipped.
TEST(EmptySteps, AreSkippedWithoutAsking) {
  auto assign = assignment({.reads_data = false});
  assign.training.empty_steps = {2};
  StageMachine machine(std::make_shared<const proto::AssignStage>(assign), {.script = {.tasks_ahead = 3}});
  ASSERT_TRUE(machine.on_command(advance(1, 3)).has_value());
  std::vector<uint64_t> skipped, skipped_before;
  std::deque<peer::Task> running;
  for (;;) {
    while (const auto task = machine.next_task(kStart)) running.push_back(*task);
    if (running.empty()) break;
    const peer::Task task = running.front();
    running.pop_front();
    EXPECT_NE(task.kind, peer::TaskKind::Squares);
    if (task.kind == peer::TaskKind::Update) {
      EXPECT_TRUE(task.with_squares);
      if (task.skip) skipped.push_back(task.key.step);
      skipped_before.push_back(task.skipped_steps);
    }
    machine.on_task_done(kStart, task, {});
  }
  EXPECT_EQ(machine.completed_step(), 3u);
  EXPECT_EQ(skipped, std::vector<uint64_t>{2});
  EXPECT_EQ(skipped_before, (std::vector<uint64_t>{0, 0, 1}));
}

TEST(SkippedSteps, AJobThatSkipsNoneIsNotToldTo) {
  StageMachine machine(std::make_shared<const proto::AssignStage>(assignment({.clip_norm = 1})));
  EXPECT_TRUE(machine.on_command(advance(1, 2)).has_value());
  EXPECT_FALSE(
      machine.on_norm({.run = 1, .plan_version = 1, .step = 1, .norm = 1, .skip = true}).has_value());
}

TEST(Tensors, ASenderMayBeTheWholeWindowAhead) {
  StageMachine machine = machine_of({.receives = true});
  proto::TensorHeader header{.run = 1, .plan_version = 1, .step = 16, .microbatch = 1, .edge = 7};
  header.spec = {dag::DType::F32, {2}};
  EXPECT_TRUE(machine.on_tensor({1}, header).has_value());
  EXPECT_FALSE(machine.on_tensor({1}, header).has_value()) << "twice";
  header.step = 17;
  EXPECT_FALSE(machine.on_tensor({1}, header).has_value()) << "too early";
  header.step = 1;
  EXPECT_FALSE(machine.on_tensor({2}, header).has_value()) << "of another stage";
}

// All but what the assignment names, in its shape and of a step under way.
TEST(Tensors, OfAnotherShapeCodecEdgeProgramOrStepAreRefused) {
  StageMachine machine = machine_of({.receives = true});
  proto::TensorHeader good{.run = 1, .plan_version = 1, .step = 2, .microbatch = 1, .edge = 7};
  good.spec = {dag::DType::F32, {2}};
  using Lie = std::function<void(proto::TensorHeader&)>;
  for (const auto& [says, lie] : std::vector<std::pair<std::string, Lie>>{
           {"expected", [](auto& header) { header.spec.shape = {3}; }},
           {"expected",
            [](auto& header) {
              header.spec.shape = {2, 1};
            }},
           {"expected", [](auto& header) { header.spec.dtype = dag::DType::F64; }},
           {"expected", [](auto& header) { header.codec.kind = compress::Kind::Float16; }},
           {"no such edge", [](auto& header) { header.edge = 8; }},
           {"was not assigned", [](auto& header) { header.program = proto::ProgramKind::Predict; }},
           {"no such microbatch", [](auto& header) { header.microbatch = 1000; }},
           {"not its time", [](auto& header) { header.step = 0; }},  // as all of a step that is done
           {"not its time", [](auto& header) { header.step = 1 + peer::Arrivals::kStepsAhead; }}}) {
    proto::TensorHeader header = good;
    lie(header);
    const Status status = machine.on_tensor({1}, header);
    ASSERT_FALSE(status.has_value()) << says;
    EXPECT_NE(status.error().message.find(says), std::string::npos) << status.error().message;
  }
  EXPECT_TRUE(machine.on_tensor({1}, good).has_value()) << "what was refused left nothing behind";
}

TEST(Reports, SayWhichSamplesWereRead) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 2);
  shell.work();
  const auto reports = shell.told_of<proto::StepReport>();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].sample_positions, (std::vector<uint64_t>{0, 4}));
  EXPECT_EQ(reports[1].sample_positions, (std::vector<uint64_t>{8, 12}));
}

TEST(Reports, AStepIsWithoutTheEvaluationAndTheSnapshotBeforeIt) {
  Shell shell;
  shell.join();
  shell.load(assignment({.reads_data = false, .evaluates = true}));
  shell.command(CommandKind::Advance, 1);
  shell.command(CommandKind::Evaluate, 1, 0, 0, 0, /*microbatches=*/3);
  shell.command(CommandKind::CopyState, 1);
  shell.command(CommandKind::Advance, 2);
  while (!shell.tasks.empty()) {
    const peer::RunTask task = shell.tasks.front();
    shell.tasks.pop_front();
    shell.now += std::chrono::milliseconds(10);  // as finish_task() says
    shell.finish_task(task);
  }
  const auto reports = shell.told_of<proto::StepReport>();
  ASSERT_EQ(reports.size(), 2u);
  for (const proto::StepReport& report : reports) {
    EXPECT_NEAR(report.seconds_busy, 0.03, 1e-9);
    EXPECT_NEAR(report.seconds, 0.03, 1e-9);
  }
}

TEST(Reports, AStageWithoutDataNamesNoSamples) {
  Shell shell;
  shell.join();
  shell.load(assignment({.reads_data = false}));
  shell.command(CommandKind::Advance, 1);
  shell.work();
  EXPECT_TRUE(shell.told_of<proto::StepReport>()[0].sample_positions.empty());
}

TEST(Reports, AHeartbeatSaysHowFarTheWorkIsTheTaskAtHandIncluded) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.work();
  shell.command(CommandKind::Advance, 2);
  shell.answer_data();
  ASSERT_EQ(shell.tasks.size(), 1u);
  shell.tick(std::chrono::seconds(3));
  const auto beats = shell.told_of<proto::Heartbeat>();
  ASSERT_EQ(beats.size(), 1u);
  ASSERT_TRUE(beats[0].work.has_value());
  EXPECT_EQ(beats[0].work->segments_done, 2u);
  EXPECT_NEAR(beats[0].work->seconds_busy, 0.02 + 3, 1e-6);
}

TEST(Comparison, RunsThreePassesAndReportsThem) {
  Shell shell;
  shell.join();
  shell.load(assignment());
  shell.command(CommandKind::Advance, 1);
  shell.work();
  shell.told.clear();
  shell.command(CommandKind::Compare, 1);
  shell.command(CommandKind::Advance, 2);
  shell.work();
  const auto compared = shell.told_of<proto::ComparisonReport>();
  ASSERT_EQ(compared.size(), 1u);
  EXPECT_EQ(compared[0].step, 1u);
  EXPECT_EQ(compared[0].losses, (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(compared[0].squares, (std::vector<double>{3, 3, 3}));
  const auto steps = shell.told_of<proto::StepReport>();
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].losses.size(), 2u) << "those of the passes are not the step's";
  EXPECT_EQ(steps[0].sample_positions, (std::vector<uint64_t>{8, 12}));
}

TEST(Comparison, IsOfAStepThatFollows) {
  StageMachine machine = machine_of();
  EXPECT_TRUE(machine.on_command(advance(1, 2)).has_value());
  Command compare{.run = 1, .plan_version = 1, .kind = CommandKind::Compare, .step = 1, .sequence = 2};
  EXPECT_FALSE(machine.on_command(compare).has_value());
  compare.step = 2;
  EXPECT_TRUE(machine.on_command(compare).has_value());
  EXPECT_TRUE(machine.on_command(advance(3, 100)).has_value());
  compare.step = 100;
  compare.sequence = 4;
  EXPECT_FALSE(machine.on_command(compare).has_value()) << "after the last step";
}

// A neighbour may be ahead with a pass, and no other microbatch lies beyond a step's.
TEST(Comparison, TensorsOfAPassComeOnce) {
  StageMachine machine = machine_of({.receives = true});
  EXPECT_TRUE(machine.on_command(advance(1, 1)).has_value());
  const proto::StageProgram& program = machine.assignment().programs.front();
  proto::TensorHeader header{.run = 1, .plan_version = 1, .step = 2, .edge = 7};
  header.spec = program.graph->spec(program.receives.front().value);
  const plan::Seat from{program.receives.front().stage, 0};
  for (uint32_t pass = 0; pass < proto::kComparisonPasses; ++pass) {
    header.microbatch = proto::kComparisonMicrobatch + pass;
    EXPECT_TRUE(machine.on_tensor(from, header).has_value()) << pass;
    EXPECT_FALSE(machine.on_tensor(from, header).has_value()) << pass;
  }
  header.microbatch = proto::kComparisonMicrobatch + proto::kComparisonPasses;
  EXPECT_FALSE(machine.on_tensor(from, header).has_value());
  header.microbatch = 2;
  EXPECT_FALSE(machine.on_tensor(from, header).has_value());
}

}  // namespace
}  // namespace weft::test
