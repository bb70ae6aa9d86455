// A peer that holds stages of several runs: each works by itself, and they share the device, the memory
// offered and the blobs.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

using namespace std::chrono_literals;
using proto::CommandKind;

peer::PeerOptions holding(size_t stages) {
  peer::PeerOptions options;
  options.bounds.stages = stages;
  return options;
}

// Loads stages of these runs, and says commands to whichever is meant.
struct Several : Shell {
  explicit Several(std::initializer_list<proto::JobNumber> runs, peer::PeerOptions options = holding(2))
      : Shell(std::move(options)) {
    join();
    for (const proto::JobNumber number : runs) take(number);
  }
  uint64_t take(proto::JobNumber number, proto::PlanVersion version = 1) {
    told.clear();
    load(assignment({.run = number, .plan_version = version}));
    sequences[number] = 0;
    told.clear();
    return peer.generation();
  }
  void command_to(proto::JobNumber number, CommandKind kind, uint64_t step, uint64_t settled = 0) {
    run = number;
    sequence = sequences[number];
    command(kind, step, 0, settled);
    sequences[number] = sequence;
  }
  template <typename M>
  std::vector<proto::JobNumber> runs_of() const {
    std::vector<proto::JobNumber> runs;
    for (const M& message : told_of<M>()) runs.push_back(message.run);
    return runs;
  }

  std::map<proto::JobNumber, uint64_t> sequences;
};

using Runs = std::vector<proto::JobNumber>;

TEST(SeveralStages, EachWorksThroughItsOwnCommands) {
  Several shell({1, 2});
  EXPECT_EQ(shell.peer.stages(), 2u);
  shell.command_to(1, CommandKind::Advance, 2);
  shell.command_to(2, CommandKind::Advance, 1);
  shell.work();
  EXPECT_EQ(shell.runs_of<proto::StepReport>(), (Runs{1, 2, 1}));
  // A command that only one of them can have is not the other's fault.
  shell.command_to(2, CommandKind::Advance, 1);
  EXPECT_EQ(shell.runs_of<proto::StageFailed>(), Runs{2});
  shell.command_to(1, CommandKind::Advance, 3);
  shell.work();
  EXPECT_EQ(shell.told_of<proto::StepReport>().size(), 4u);
}

TEST(SeveralStages, ARunHasOneAndTheOldestGivesWayToAThird) {
  Several shell({1, 2});
  shell.take(1, 2);
  EXPECT_EQ(shell.peer.stages(), 2u) << "the later plan took the place of the earlier";
  shell.take(3);
  EXPECT_EQ(shell.peer.stages(), 2u);
  shell.told.clear();
  shell.command_to(2, CommandKind::Advance, 1);  // the oldest by now
  shell.work();
  EXPECT_TRUE(shell.told_of<proto::StepReport>().empty());
  shell.plan_version = 2;
  shell.command_to(1, CommandKind::Advance, 1);
  shell.work();
  EXPECT_EQ(shell.runs_of<proto::StepReport>(), Runs{1});
}

TEST(SeveralStages, ThereIsRoomForOneByDefault) {
  Several shell({1, 2}, {});
  EXPECT_EQ(shell.peer.stages(), 1u);
}

TEST(SeveralStages, WhatEndsOneLeavesTheOtherAtWork) {
  Several shell({1});
  const uint64_t first = shell.peer.generation();
  shell.take(2);
  shell.command_to(1, CommandKind::Advance, 1);
  shell.command_to(2, CommandKind::Advance, 1);
  shell.act(shell.peer.on_link_failed(shell.now, first, {1}, {ErrorCode::Unavailable, "gone"}));
  EXPECT_EQ(shell.runs_of<proto::StageFailed>(), Runs{1});
  shell.work();
  EXPECT_EQ(shell.runs_of<proto::StepReport>(), Runs{2});
  shell.say(proto::ReleaseStage{.run = 1, .plan_version = 1});
  EXPECT_EQ(shell.peer.stages(), 1u);
  shell.command_to(2, CommandKind::Advance, 2);
  shell.work();
  EXPECT_EQ(shell.runs_of<proto::StepReport>(), (Runs{2, 2}));
}

TEST(SeveralStages, ASnapshotIsUploadedForTheStageThatMadeIt) {
  Several shell({1, 2});
  for (const proto::JobNumber number : {1, 2}) {
    shell.command_to(number, CommandKind::Advance, 1);
    shell.command_to(number, CommandKind::Checkpoint, 1);
  }
  shell.work();
  ASSERT_EQ(shell.offers.size(), 2u);
  EXPECT_NE(shell.offers[0].upload, shell.offers[1].upload);
  std::swap(shell.offers[0], shell.offers[1]);  // answered in another order than asked
  shell.answer_uploads();
  EXPECT_EQ(shell.runs_of<proto::CheckpointReport>(), (Runs{2, 1}));
  for (const auto& report : shell.told_of<proto::CheckpointReport>()) EXPECT_FALSE(report.failure);
  // The blobs are the same ones; they stay as long as either has use for them.
  shell.say(proto::ReleaseStage{.run = 1, .plan_version = 1});
  EXPECT_FALSE(shell.memory.empty());
}

TEST(SeveralStages, TheMemoryOfferedIsForAllOfThem) {
  peer::PeerOptions options = holding(2);
  options.session.hello.device = proto::DeviceReport{.memory = {400}};  // a stage of the shell takes 120
  Several both({1, 2}, options);
  EXPECT_EQ(both.peer.stages(), 2u);
  options.session.hello.device->memory = {200};
  Several one({1}, options);
  one.say(assignment({.run = 2}));
  one.answer_fetches();
  if (one.runner->generation == one.peer.generation())
    one.act(one.peer.on_runner_made(one.now, one.runner->generation, peer::RunnerSize{{100}, {10}}));
  const auto failed = one.told_of<proto::StageFailed>();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].run, 2u);
  EXPECT_EQ(failed[0].error.code, ErrorCode::ResourceExhausted);
}

TEST(SeveralStages, ABrokerThatComesBackResumesAll) {
  Several shell({1, 2});
  shell.command_to(1, CommandKind::Advance, 1);
  shell.command_to(2, CommandKind::Advance, 1);
  shell.lose_broker();
  shell.work();
  shell.reconnect();
  const auto hello = shell.told_of<proto::Hello>();
  ASSERT_EQ(hello.size(), 1u);
  ASSERT_EQ(hello[0].holding.size(), 2u);
  EXPECT_EQ(hello[0].holding[0].run, 1u);
  EXPECT_EQ(hello[0].holding[1].run, 2u);
  shell.welcome();
  for (const proto::JobNumber run : {2, 1}) shell.say(proto::ResumeStage{.run = run, .plan_version = 1});
  const auto resumed = shell.told_of<proto::StageResumed>();
  ASSERT_EQ(resumed.size(), 2u);
  EXPECT_EQ(resumed[0].persistent, Bytes{100});
  EXPECT_EQ(resumed[0].microbatch, Bytes{10});
  shell.answer_data();
  shell.work();
  EXPECT_EQ(shell.runs_of<proto::StepReport>(), (Runs{2, 1}));
  EXPECT_EQ(shell.peer.stages(), 2u);
}

// A broker that knows nothing of one of them says nothing of it.
TEST(SeveralStages, OneThatNobodyResumesIsGivenUpAfterTheDeadline) {
  Several shell({1, 2});
  shell.lose_broker();
  shell.reconnect();
  shell.welcome();
  shell.say(proto::ResumeStage{.run = 2, .plan_version = 1});
  EXPECT_EQ(shell.peer.stages(), 2u);
  while (shell.peer.stages() == 2u && shell.now < kStart + 1h) {
    shell.tick(1s);
    shell.welcome();  // it is there
  }
  EXPECT_LE(shell.now, kStart + peer::PeerOptions{}.orphan_deadline + 1min);
  EXPECT_EQ(shell.peer.assignment()->run, 2u);
}

TEST(SeveralStages, ADeviceThatIsGoneEndsAll) {
  Several shell({1, 2});
  shell.command_to(1, CommandKind::Advance, 1);
  shell.answer_data();
  ASSERT_FALSE(shell.tasks.empty());
  const peer::RunTask task = shell.tasks.front();
  shell.act(shell.peer.on_task_done(shell.now, task.generation, task.task,
                                    fail(ErrorCode::DeviceLost, "it fell off the bus")));
  EXPECT_EQ(shell.runs_of<proto::StageFailed>(), (Runs{1, 2}));
  EXPECT_TRUE(shell.left);
  EXPECT_EQ(shell.peer.stages(), 0u);
}

}  // namespace
}  // namespace weft::test
