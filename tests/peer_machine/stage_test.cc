// The rules of a stage at work: sequence numbers, what neighbours may send, what reports hold.
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
