// The rules of a stage at work: sequence numbers, what neighbours may send, what reports hold.
#include <cmath>

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
  Command replicate{.run = 1, .plan_version = 1, .kind = CommandKind::Replicate, .step = 1, .sequence = 2};
  EXPECT_FALSE(machine.on_command(replicate).has_value());
  replicate.step = 2;
  EXPECT_TRUE(machine.on_command(replicate).has_value());
}

// Everything that a stage runs for three steps, a checkpoint and an evaluation, with `ahead` tasks handed out
// at once: what, in which order, and what was reported in between.
std::vector<std::string> sequence_of(double clip_norm, uint32_t ahead) {
  const auto assigned = std::make_shared<const proto::AssignStage>(
      assignment({.clip_norm = clip_norm, .reads_data = false, .evaluates = true}));
  StageMachine machine(assigned, {.tasks_ahead = ahead});
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

TEST(Tensors, ASenderMayBeTheWholeWindowAhead) {
  StageMachine machine = machine_of({.receives = true});
  proto::TensorHeader header{.run = 1, .plan_version = 1, .step = 16, .microbatch = 1, .edge = 7};
  header.spec = {dag::DType::F32, {2}};
  EXPECT_TRUE(machine.on_tensor(1, header).has_value());
  EXPECT_FALSE(machine.on_tensor(1, header).has_value()) << "twice";
  header.step = 17;
  EXPECT_FALSE(machine.on_tensor(1, header).has_value()) << "too early";
  header.step = 1;
  EXPECT_FALSE(machine.on_tensor(2, header).has_value()) << "of another stage";
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

}  // namespace
}  // namespace weft::test
