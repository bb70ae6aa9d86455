// What is left of a job that is stopped while nobody works on it: all that it learnt and the broker has; and
// where something is lost, its user is told.
#include <gtest/gtest.h>

#include "tests/broker/cluster.h"
#include "tests/broker/world.h"

namespace weft::test {
namespace {

using proto::JobState;

const broker::StoredJob& stored(Cluster& cluster) { return cluster.store().state().jobs.at(1); }

void turn_until(Cluster& cluster, JobState state) {
  for (int i = 0; i < 20'000 && cluster.state() != state; ++i) cluster.turn();
  ASSERT_EQ(cluster.state(), state);
}

void all_pause(Cluster& cluster, uint8_t peers) {
  for (uint8_t peer = 1; peer <= peers; ++peer) cluster.drain(peer);
  turn_until(cluster, JobState::Waiting);
}

// Small stages have a copy of each step, large ones make one when they are let go. Stopped after `turns`.
void stop_when_all_have_paused(int64_t stage_bytes, int turns) {
  SCOPED_TRACE(testing::Message() << stage_bytes << " bytes a stage, after " << turns << " turns");
  Cluster cluster({.steps = 1000, .checkpoint_steps = std::nullopt, .stage_bytes = stage_bytes}, 3);
  cluster.join(1);
  cluster.join(2);
  cluster.submit();
  while (cluster.step() < 7) cluster.turn();
  all_pause(cluster, 2);
  const uint64_t learnt = cluster.step();
  for (int i = 0; i < turns; ++i) cluster.turn();
  cluster.stop_job();
  ASSERT_TRUE(cluster.play());
  EXPECT_EQ(cluster.state(), JobState::Stopped);
  EXPECT_EQ(stored(cluster).last.reason, "stopped by its user after step " + std::to_string(learnt));
  ASSERT_FALSE(stored(cluster).checkpoints.empty());
  EXPECT_EQ(stored(cluster).checkpoints.back().step, learnt);
  cluster.forget_transient();
  for (uint32_t stage = 0; stage < 2; ++stage) EXPECT_TRUE(cluster.broker_has(cluster.digest(stage, learnt)));
  cluster.check_log();
}

TEST(Stop, OfAJobWhosePeersHaveAllPausedKeepsWhatItLearnt) {
  for (const int64_t stage_bytes : {0, 5'000'000})
    for (const int turns : {0, 200}) stop_when_all_have_paused(stage_bytes, turns);
}

// As long as nobody is there, nobody can make another copy.
TEST(Waiting, WhatAJobLearntSurvivesTheBrokerOnceItsPeersHavePaused) {
  Cluster cluster({.steps = 40, .checkpoint_steps = std::nullopt}, 3);
  cluster.join(1);
  cluster.join(2);
  cluster.submit();
  while (cluster.step() < 7) cluster.turn();
  all_pause(cluster, 2);
  const uint64_t learnt = cluster.step();
  for (int i = 0; i < 200; ++i) cluster.turn();
  cluster.crash_broker();
  EXPECT_EQ(cluster.core().status(1)->recovery_step, learnt);
  cluster.join(5);
  cluster.join(6);
  EXPECT_TRUE(cluster.play());
  cluster.check_log();
}

// The spare alone has all of the newest copy, which goes with the job; the broker has an older one.
TEST(Stop, SaysWhatIsLostThatPeersAloneHad) {
  Cluster cluster({.steps = 1000, .checkpoint_steps = std::nullopt, .stage_bytes = 5'000'000}, 1);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  const auto is_direct = [&](uint64_t step) {
    return step != 0 && !cluster.broker_has(cluster.digest(0, step));
  };
  while (cluster.state() != JobState::Running || !is_direct(cluster.core().status(1)->recovery_step))
    cluster.turn();
  const uint64_t newest = cluster.core().status(1)->recovery_step;
  cluster.lose(1);
  cluster.lose(2);
  turn_until(cluster, JobState::Waiting);
  ASSERT_EQ(cluster.core().status(1)->recovery_step, newest);
  cluster.stop_job();
  ASSERT_TRUE(cluster.play());
  ASSERT_EQ(cluster.state(), JobState::Stopped);
  ASSERT_FALSE(stored(cluster).checkpoints.empty());
  const uint64_t kept = stored(cluster).checkpoints.back().step;
  EXPECT_LT(kept, newest);
  EXPECT_EQ(stored(cluster).last.reason, "stopped by its user after step " + std::to_string(newest) +
                                             "; the copy of step " + std::to_string(newest) +
                                             " was with peers alone: peer3; what the job learnt after step " +
                                             std::to_string(kept) + " is lost");
  EXPECT_EQ(stored(cluster).last.step, kept);
}

}  // namespace
}  // namespace weft::test

namespace weft::broker {
namespace {

constexpr ConnectionId kUser = 100;

// A job whose two peers leave it after step `step`, of which the broker has a copy that is not durable.
uint64_t leave_alone(World& world) {
  world.run_two_stages(100);
  world.report_step(1);
  for (const ConnectionId peer : world.peers) world.receive(peer, proto::Drain{.returns = true});
  const uint64_t last = world.messages<proto::Command>(world.peers[0]).back().step;
  for (uint64_t step = 2; step <= last; ++step) world.report_step(step);
  for (const ConnectionId peer : world.peers) world.step(Disconnected{peer, "closed"});
  EXPECT_EQ(world.states[1], JobState::Waiting);
  return last;
}

std::string state_text(const World& world) {
  for (auto event = world.events.rbegin(); event != world.events.rend(); ++event)
    if (event->kind == proto::JobEventKind::State) return event->text;
  return "";
}

TEST(Stop, WaitsUntilTheCopyIsDurableAndIsResumedFromIt) {
  World world;
  world.keeps_blobs = false;
  const uint64_t learnt = leave_alone(world);
  world.receive(kUser, proto::StopJob{1});
  world.receive(kUser, proto::StopJob{1});
  EXPECT_EQ(world.states[1], JobState::Stopping);
  world.receive(kUser, proto::RemoveJob{1});
  ASSERT_EQ(world.messages<proto::Refusal>(kUser).size(), 1u);
  EXPECT_EQ(world.messages<proto::Refusal>(kUser)[0].message,
            "job 1 has not ended: it is stopping, and can be removed once it has stopped");
  ASSERT_EQ(world.keeps.size(), 1u);
  EXPECT_EQ(world.keeps[0].step, learnt);
  world.join(7, 7);
  world.join(8, 8);
  world.plannings.clear();
  for (int i = 0; i < 6; ++i) {
    world.wait(std::chrono::seconds(5));
    for (const ConnectionId peer : {7, 8}) world.receive(peer, proto::Heartbeat{});
  }
  EXPECT_EQ(world.states[1], JobState::Stopping) << "and nobody begins it again";
  EXPECT_TRUE(world.plannings.empty());
  world.step(BlobsKept{1, learnt, {}});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  EXPECT_EQ(state_text(world), "stopped by its user after step " + std::to_string(learnt));
  world.receive(kUser, proto::GetResult{1});
  ASSERT_EQ(world.messages<proto::JobResult>(kUser).size(), 1u);
  EXPECT_EQ(world.messages<proto::JobResult>(kUser)[0].step, learnt);
  world.receive(kUser, proto::ResumeJob{1});
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().checkpoint->step, learnt);
}

TEST(Stop, WithAFullDiskTriesAgain) {
  World world;
  world.keeps_blobs = false;
  const uint64_t learnt = leave_alone(world);
  world.receive(kUser, proto::StopJob{1});
  world.step(BlobsKept{1, learnt, fail(ErrorCode::ResourceExhausted, "no space left")});
  EXPECT_EQ(world.states[1], JobState::Stopping);
  EXPECT_NE(state_text(world).find("no space left"), std::string::npos) << state_text(world);
  world.wait(std::chrono::seconds(1));
  EXPECT_EQ(world.keeps.size(), 1u);
  world.wait(std::chrono::seconds(60));
  ASSERT_EQ(world.keeps.size(), 2u);
  world.step(BlobsKept{1, learnt, {}});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  EXPECT_EQ(world.broker.status(1), std::nullopt);
}

TEST(Stop, SaysWhatCouldNotBeKept) {
  World world;
  world.keeps_blobs = false;
  const uint64_t learnt = leave_alone(world);
  world.receive(kUser, proto::StopJob{1});
  world.step(BlobsKept{1, learnt, fail(ErrorCode::NotFound, "blob x is not here any more")});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  const std::string number = std::to_string(learnt);
  EXPECT_EQ(state_text(world),
            "stopped by its user after step " + number + "; the copy of step " + number +
                " could not be kept: blob x is not here any more; what the job learnt is lost");
  world.receive(kUser, proto::GetResult{1});
  ASSERT_EQ(world.messages<proto::Refusal>(kUser).size(), 1u);
  EXPECT_NE(world.messages<proto::Refusal>(kUser)[0].message.find("what the job learnt is lost"),
            std::string::npos);
}

TEST(Stop, OfABrokerThatEndsMeanwhileSaysWhatIsLost) {
  World world;
  world.keeps_blobs = false;
  leave_alone(world);
  world.receive(kUser, proto::StopJob{1});
  World again(*world.store.load());
  again.wait(std::chrono::seconds(1));
  EXPECT_EQ(again.states[1], JobState::Stopped);
  EXPECT_EQ(state_text(again), "stopped by its user; the broker was restarted; what the job learnt is lost");
}

// Its peers go while it stops: what the broker has by then is kept.
TEST(Stop, WithPeersThatGoBeforeTheLastCheckpointKeepsTheCopyBefore) {
  World world;
  world.run_two_stages(100);
  for (uint64_t step = 1; step <= 3; ++step) world.report_step(step);
  const uint64_t copied = world.broker.status(1)->recovery_step;
  ASSERT_GT(copied, 0u);
  world.receive(kUser, proto::StopJob{1});
  EXPECT_EQ(world.states[1], JobState::Stopping);
  world.step(Disconnected{world.peers[0], "gone"});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  world.receive(kUser, proto::GetResult{1});
  ASSERT_EQ(world.messages<proto::JobResult>(kUser).size(), 1u);
  EXPECT_EQ(world.messages<proto::JobResult>(kUser)[0].step, copied);
}

// A job that is given up says from where it can go on, and does.
TEST(GivenUp, KeepsWhatTheBrokerHas) {
  World world;
  const uint64_t learnt = leave_alone(world);
  world.join(7, 7);
  world.join(8, 8);
  for (int i = 0; i < 10'000 && world.states[1] != JobState::Failed; ++i) {
    if (world.plannings.empty()) {
      world.wait(std::chrono::seconds(5));
      for (const ConnectionId peer : {7, 8}) world.receive(peer, proto::Heartbeat{});
      continue;
    }
    const StartPlanning asked = world.plannings.back();
    world.plannings.clear();
    world.step(PlanningDone{1, asked.plan_version, fail(ErrorCode::Unavailable, "it died")});
  }
  ASSERT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(state_text(world).find("of step " + std::to_string(learnt)), std::string::npos)
      << state_text(world);
  world.receive(kUser, proto::ResumeJob{1});
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().checkpoint->step, learnt);
}

}  // namespace
}  // namespace weft::broker
