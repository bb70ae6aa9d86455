// The broker's core by hand-moved time: what happens when a peer, a run or the broker itself is gone, or gets
// no further.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobState;

TEST(Recovery, ALostPeerTakesTheRunBackToItsCheckpointWithASpare) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  for (uint64_t step = 1; step <= 4; ++step) world.report_step(step);
  for (int i = 0; i < 9; ++i) {
    world.wait(std::chrono::seconds(7));
    for (ConnectionId peer = 1; peer <= 3; ++peer) world.receive(peer, proto::Heartbeat{});
    if (i == 4) world.report_step(5);
  }
  // A step has one snapshot: the checkpoint is that of the next step granted.
  world.report_step(6);
  const auto commands = world.messages<proto::Command>(world.peers[0]);
  const auto checkpoint = std::find_if(commands.begin(), commands.end(), [](const auto& c) {
    return c.kind == proto::CommandKind::Checkpoint;
  });
  ASSERT_NE(checkpoint, commands.end());
  for (uint64_t step = 7; step <= checkpoint->step; ++step) world.report_step(step);
  world.report_checkpoint(checkpoint->step);
  world.report_step(checkpoint->step + 1);
  const ConnectionId lost = world.peers[0];
  world.step(Disconnected{lost, "reset by peer"});
  ASSERT_EQ(world.plannings.size(), 1u);
  ASSERT_TRUE(world.plannings[0].checkpoint.has_value());
  EXPECT_EQ(world.plannings[0].checkpoint->step, checkpoint->step + 1) << "its copy is newer";
  EXPECT_EQ(world.plannings[0].candidates.size(), 2u);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(lost)));
  EXPECT_EQ(world.messages<proto::ReleaseStage>(world.peers[1]).size(), 1u);
  world.plan_and_ready(2, 100);
  EXPECT_EQ(world.states[1], JobState::Running);
  const auto grants = world.messages<proto::Command>(world.peers[0]);
  EXPECT_GT(grants.back().step, checkpoint->step);
  EXPECT_EQ(grants.back().plan_version, world.version);
}

TEST(Recovery, WhatAReleasedPeerStillReportsChangesNothing) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  const auto old_version = world.version;
  const ConnectionId survivor = world.peers[1];
  world.step(Disconnected{world.peers[0], "gone"});
  proto::StepReport late;
  late.run = 1;
  late.plan_version = old_version;
  late.step = 1;
  late.squares = {1.0};
  late.updated = true;
  world.receive(survivor, late);
  EXPECT_EQ(world.broker.counters().stale_dropped, 1u);
  EXPECT_TRUE(std::find(world.closed.begin(), world.closed.end(), survivor) == world.closed.end());
}

TEST(Recovery, APeerThatBreaksTheProtocolIsClosedAndTheRunGoesOnWithoutIt) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  proto::StepReport wrong;
  wrong.run = 1;
  wrong.plan_version = world.version;
  wrong.step = 99;  // never granted
  wrong.squares = {1.0};
  world.receive(world.peers[0], wrong);
  EXPECT_EQ(world.broker.counters().protocol_errors, 1u);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{world.peers[0]}));
  EXPECT_EQ(world.plannings.size(), 1u);
}

TEST(Recovery, WhereThePlanBeforeWillNotDoEverythingIsPlannedAnew) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  world.step(Disconnected{world.peers[0], "gone"});
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_TRUE(world.plannings[0].previous);
  EXPECT_EQ(world.plannings[0].placed, (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(world.plannings[0].candidates[0].name, "peer3");
  EXPECT_EQ(world.plannings[0].candidates[1].name, "peer2");
  world.step(PlanningDone{1, world.plannings[0].plan_version, fail(ErrorCode::Infeasible, "no room")});
  ASSERT_EQ(world.plannings.size(), 2u);
  EXPECT_FALSE(world.plannings[1].previous);
  EXPECT_EQ(world.plannings[1].checkpoint->step, 1u);
}

// Who joins while a plan is made is none of those that it was made for.
TEST(Recovery, AJobWithoutAPlanIsPlannedAgainWithWhoCameMeanwhile) {
  World world;
  world.join(1, 1);
  world.submit(100, 1);
  ASSERT_EQ(world.plannings.size(), 1u);
  world.join(2, 2);
  ASSERT_EQ(world.plannings.size(), 1u);
  world.step(PlanningDone{1, world.plannings[0].plan_version, fail(ErrorCode::Infeasible, "needs 2")});
  ASSERT_EQ(world.plannings.size(), 2u);
  EXPECT_EQ(world.plannings[1].candidates.size(), 2u);
  world.step(PlanningDone{1, world.plannings[1].plan_version, fail(ErrorCode::Infeasible, "needs 3")});
  EXPECT_EQ(world.plannings.size(), 2u) << "nobody has come since";
  EXPECT_EQ(world.states[1], JobState::Waiting);
}

TEST(Recovery, APinnedStageIsNotGivenToASpare) {
  World world;
  world.pinned = true;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  world.step(Disconnected{world.peers[0], "gone"});
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_FALSE(world.plannings[0].previous) << "the planner says who is missing";
  world.step(PlanningDone{1, world.plannings[0].plan_version, fail(ErrorCode::Infeasible, "'x' is away")});
  EXPECT_EQ(world.states[1], JobState::Waiting);
}

TEST(Recovery, TheFirstCommitAfterwardsSaysHowLongItTook) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  world.step(Disconnected{world.peers[0], "gone"});
  world.plan_and_ready(2, 100);
  world.now += std::chrono::milliseconds(2300);
  world.report_step(2);
  EXPECT_EQ(world.events.back().text, "going on after 2.3 s");
}

TEST(StandBy, WhoJoinsGetsTheTensorsAndForgetsThemWhenTheJobEnds) {
  World world;
  world.run_two_stages(3);
  world.report_step(1);
  world.join(3, 3);
  const auto told = world.messages<proto::StandBy>(3);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].run, 1u);
  EXPECT_EQ(told[0].step, 1u);
  world.report_step(2);
  EXPECT_EQ(world.messages<proto::StandBy>(3).back().step, 2u);
  const size_t before = world.messages<proto::StandBy>(3).size();
  world.report_step(3);
  world.report_checkpoint(3);
  EXPECT_EQ(world.states[1], JobState::Finished);
  const auto all = world.messages<proto::StandBy>(3);
  ASSERT_EQ(all.size(), before + 1);
  EXPECT_TRUE(all.back().tensors.empty());
}

TEST(StandBy, PeersOfAnotherFingerprintOnlyWhileNoneOfTheSameIsThere) {
  World world;
  world.run_two_stages(10);
  proto::Hello hello;
  hello.name = "other";
  hello.device = proto::DeviceReport{.device = "null:x", .memory = {1 << 30}, .fingerprint = "g"};
  world.step(Introduced{9, key(9), "test", hello, TokenVerdict::Valid});
  world.report_step(1);
  ASSERT_FALSE(world.messages<proto::StandBy>(9).empty());
  EXPECT_EQ(world.messages<proto::StandBy>(9).back().step, 1u);
  world.join(3, 3);
  world.join(4, 4);
  ASSERT_FALSE(world.messages<proto::StandBy>(3).empty());
  EXPECT_EQ(world.messages<proto::StandBy>(3).back().step, 1u);
  EXPECT_EQ(world.messages<proto::StandBy>(9).back().step, 0u) << "it is let off";
}

// Nothing comes but heartbeats, until just before and just after the deadline.
void beat(World& world, Duration duration) {
  for (Duration passed{}; passed < duration; passed += std::chrono::seconds(5)) {
    world.wait(std::chrono::seconds(5));
    for (const ConnectionId peer : world.peers) world.receive(peer, proto::Heartbeat{});
  }
}

TEST(Stall, ARunWithoutProgressIsTakenBackAndNotBefore) {
  World world;
  world.run_two_stages(100);
  beat(world, std::chrono::seconds(60));
  EXPECT_TRUE(world.plannings.empty());
  beat(world, std::chrono::seconds(5));
  EXPECT_EQ(world.plannings.size(), 1u);
}

TEST(Stall, AStepThatIsPredictedToTakeLongIsWaitedFor) {
  World world;
  world.predicted_step = std::chrono::seconds(30);
  world.run_two_stages(100);
  beat(world, std::chrono::seconds(300));
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Running);
}

TEST(Stall, APredictionsOldestRequestHasADeadlineWhateverElseIsAnswered) {
  World world;
  world.run_two_stages(/*steps=*/0);
  for (uint32_t microbatch = 1; microbatch < 14; ++microbatch) {  // all but the first
    beat(world, std::chrono::seconds(5));
    if (!world.plannings.empty()) break;
    for (size_t stage = 0; stage < world.peers.size(); ++stage) {
      proto::TensorReference output;
      output.key.name = "y" + std::to_string(stage);
      output.spec = {dag::DType::F32, {}};
      world.receive(
          world.peers[stage],
          proto::PredictionReport{
              .run = 1, .plan_version = world.version, .microbatch = microbatch, .outputs = {output}});
    }
  }
  EXPECT_EQ(world.plannings.size(), 1u);
}

// As where the process that plans it died: it was planned before.
TEST(Recovery, AJobThatHasRunIsNotLostForWantOfAPlan) {
  World world;
  world.run_two_stages(100);
  world.report_step(1);
  world.join(3, 3);
  world.step(Disconnected{world.peers[0], "gone"});
  const auto planning_dies = [&] {
    const StartPlanning asked = world.plannings.back();
    world.plannings.clear();
    world.step(PlanningDone{1, asked.plan_version, fail(ErrorCode::Unavailable, "it died")});
  };
  int tries = 0;
  for (int i = 0; i < 10'000 && world.states[1] != JobState::Failed; ++i) {
    if (world.plannings.empty()) {
      world.wait(std::chrono::seconds(5));
      for (const ConnectionId peer : {2, 3}) world.receive(peer, proto::Heartbeat{});
      continue;
    }
    tries += world.plannings.back().previous == nullptr;
    planning_dies();
  }
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_GT(tries, 10) << "with pauses, and not for ever";
  EXPECT_LT(tries, 20);
  EXPECT_NE(world.events.back().text.find("weft resume 1"), std::string::npos) << world.events.back().text;
}

TEST(Stop, ChecksPointsFirstAndThenStops) {
  World world;
  world.run_two_stages(100);
  world.report_step(1);
  world.receive(100, proto::StopJob{1});
  EXPECT_EQ(world.states[1], JobState::Stopping);
  const auto last = world.messages<proto::Command>(world.peers[0]).back();
  ASSERT_EQ(last.kind, proto::CommandKind::Checkpoint);
  for (uint64_t step = 2; step <= last.step; ++step) world.report_step(step);
  world.report_checkpoint(last.step);
  EXPECT_EQ(world.states[1], JobState::Stopped);
}

TEST(Drain, ARunMovesFromASnapshotWithoutRedoingAStep) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  const ConnectionId leaving = world.peers[0];
  world.receive(leaving, proto::Drain{});
  const auto last = world.messages<proto::Command>(leaving).back();
  ASSERT_EQ(last.kind, proto::CommandKind::CopyState);
  for (uint64_t step = 2; step <= last.step; ++step) world.report_step(step);
  EXPECT_EQ(world.messages<proto::Command>(leaving).back().step, last.step) << "nothing more was granted";
  EXPECT_EQ(world.messages<proto::ReleaseStage>(leaving).size(), 1u);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_EQ(world.plannings[0].checkpoint->step, last.step);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(leaving)));
}

TEST(Restart, GoesOnFromTheLastCheckpointWhenPeersAreBack) {
  StoredState state;
  state.principals.push_back({key(1), proto::Role::Peer, "peer1", 1, 0});
  state.principals.push_back({key(2), proto::Role::Peer, "peer2", 1, 0});
  StoredJob& job = state.jobs[7];
  job.submitted.job = 7;
  job.submitted.submission = proto::SubmitJob{.stages = 2};
  job.last = {.job = 7, .state = JobState::Running, .reason = "", .plan_version = 3, .step = 0, .steps = 100};
  job.checkpoints.push_back({7, 40, {}});
  job.last_event = 55;
  World world(state);
  world.join(1, 1, TokenVerdict::None);
  world.join(2, 2, TokenVerdict::None);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_EQ(world.plannings[0].job, 7u);
  EXPECT_EQ(world.plannings[0].plan_version, 4u);
  EXPECT_EQ(world.plannings[0].checkpoint->step, 40u);
  EXPECT_GT(world.events.front().sequence, 55u);
}

}  // namespace
}  // namespace weft::broker
