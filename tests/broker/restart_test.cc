// A broker that dies at any moment: what it was doing goes on, and no committed step is done again.
#include <gtest/gtest.h>

#include "tests/broker/cluster.h"
#include "tests/broker/world.h"
#include "tests/support/memory_store.h"

namespace weft::test {
namespace {

using proto::JobState;

void expect_each_step_once(Cluster& cluster, uint8_t peers, uint64_t steps) {
  for (uint8_t number = 1; number <= peers; ++number)
    for (uint64_t step = 1; step <= steps; ++step)
      EXPECT_EQ(cluster.peer(number).done[step], 1) << "peer " << int{number} << ", step " << step;
}

// Crashes at the n-th append, or at every append of a run in turn.
int crash_once(ClusterOptions options, int at, bool durable, uint64_t seed) {
  SCOPED_TRACE("append " + std::to_string(at) + (durable ? ", durable" : ", not durable") + ", seed " +
               std::to_string(seed));
  Cluster cluster(options, seed);
  for (uint8_t peer = 1; peer <= options.stages; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.state() != JobState::Running && !testing::Test::HasFailure()) cluster.turn();
  cluster.crash_at_append(at, durable);
  EXPECT_TRUE(cluster.play()) << "the job does not end";
  EXPECT_EQ(cluster.state(), JobState::Finished);
  cluster.check_log();
  cluster.check_script();
  EXPECT_EQ(cluster.core().counters().protocol_errors, 0u);
  expect_each_step_once(cluster, static_cast<uint8_t>(options.stages), options.steps);
  return cluster.crashed() ? 1 : 0;
}

void crash_at_each(const ClusterOptions& options) {
  for (const bool durable : {false, true})
    for (int at = 1; !testing::Test::HasFailure(); ++at)
      if (crash_once(options, at, durable, static_cast<uint64_t>(at)) == 0) break;
}

TEST(Restart, AtEveryRecordBoundaryOfARun) {
  crash_at_each({.evaluate_every = 4, .forward_microbatches = 20});
}

TEST(Restart, AtEveryRecordBoundaryWithClippedGradients) {
  crash_at_each({.stages = 3, .clip_norm = 1, .checkpoint_steps = std::nullopt, .submitted_stages = 3});
}

// What all stages do with a step follows from what they say again; how many were skipped is in the snapshots.
TEST(Restart, AtEveryRecordBoundaryWithStepsThatAreSkipped) {
  crash_at_each({.skips = {1, 4, 5, 12}});
  crash_at_each({.clip_norm = 1, .skips = {3, 8}, .checkpoint_steps = 7, .stage_bytes = 5'000'000});
}

TEST(Restart, AtEveryRecordBoundaryWithSnapshotsNowAndThen) {
  crash_at_each({.checkpoint_steps = 7, .stage_bytes = 5'000'000});
}

TEST(Restart, OverAndOver) {
  for (uint64_t seed = 1; seed <= 20 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster({.steps = 30}, seed);
    cluster.join(1);
    cluster.join(2);
    cluster.submit();
    while (cluster.state() != JobState::Running) cluster.turn();
    Rng rng(seed, 3);
    for (int i = 0; i < 6; ++i) {
      for (uint64_t turn = 0, turns = rng.below(80); turn < turns; ++turn) cluster.turn();
      cluster.crash_broker();
    }
    EXPECT_TRUE(cluster.play());
    cluster.check_log();
    cluster.check_script();
    expect_each_step_once(cluster, 2, 30);
  }
}

// A broker that finds a job being planned: whoever ended the one before, a third is not to end by it.
struct PlannedAgain {
  MemoryStore store;
  std::unique_ptr<broker::World> world;

  void start() {
    world = std::make_unique<broker::World>(store.state());
    world->wait(Duration(0));
    world->join(1, 1, broker::TokenVerdict::Valid);
  }
  void die() { ASSERT_TRUE(store.append(std::exchange(world->records, {}))); }
};

TEST(Restart, AJobThatTwoBrokersDiedOverIsEndedWithWords) {
  PlannedAgain run;
  run.start();
  run.world->submit(100, 1);
  ASSERT_EQ(run.world->plannings.size(), 1u);
  run.die();
  run.start();
  ASSERT_EQ(run.world->plannings.size(), 1u);
  run.die();
  run.start();
  EXPECT_TRUE(run.world->plannings.empty());
  EXPECT_EQ(run.world->states[1], JobState::Failed);
  EXPECT_NE(run.world->events.back().text.find("the broker ended twice"), std::string::npos)
      << run.world->events.back().text;
}

TEST(Restart, ABrokerThatIsEndedAsAskedIsNoDeath) {
  PlannedAgain run;
  run.start();
  run.world->submit(100, 1);
  for (int i = 0; i < 4; ++i) {
    ASSERT_EQ(run.world->plannings.size(), 1u) << i;
    run.world->step(broker::Leaving{});
    EXPECT_EQ(run.world->plannings.size(), 1u) << "nothing is begun any more";
    run.die();
    run.start();
  }
  EXPECT_EQ(run.world->states[1], JobState::Planning);
}

TEST(Restart, AJobThatWasPlannedBetweenTwoDeathsIsPlannedOnceMore) {
  PlannedAgain run;
  run.start();
  run.world->submit(100, 1);
  run.die();
  run.start();
  ASSERT_EQ(run.world->plannings.size(), 1u);
  run.world->step(
      broker::PlanningDone{1, run.world->plannings[0].plan_version, fail(ErrorCode::Infeasible, "too few")});
  ASSERT_EQ(run.world->states[1], JobState::Waiting);
  run.world->join(2, 2);
  ASSERT_EQ(run.world->states[1], JobState::Planning);
  run.die();
  run.start();
  EXPECT_EQ(run.world->plannings.size(), 1u);
  EXPECT_EQ(run.world->states[1], JobState::Planning);
}

TEST(Restart, APeerThatDoesNotComeBackIsReplacedAfterAWhile) {
  for (int moment = 60; moment < 150 && !testing::Test::HasFailure(); moment += 10) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.steps = 20}, 4);
    for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
    cluster.submit();
    for (int i = 0; i < moment; ++i) cluster.turn();
    const uint8_t lost = cluster.peer_of_stage(0);
    ASSERT_NE(lost, 0);
    cluster.lose(lost);
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    cluster.check_log();
  }
}

TEST(Restart, APeerThatComesBackWithoutItsStageIsReplacedAtOnce) {
  Cluster cluster({.steps = 20}, 4);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.step() < 7) cluster.turn();
  const uint8_t lost = cluster.peer_of_stage(1);
  cluster.lose(lost);
  cluster.crash_broker();
  cluster.join(lost);
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  const std::string notices = testing::PrintToString(cluster.notices());
  EXPECT_NE(notices.find("came back without its stage"), std::string::npos) << notices;
  EXPECT_NE(notices.find("going on from the checkpoint of step 5"), std::string::npos) << notices;
}

// Its peers have come further than a backup that was restored: they lose their stages, and not their lives.
TEST(Restart, WithAnOlderCopyOfItsRecordsTheRunGoesOnFromThere) {
  for (uint64_t seed = 1; seed <= 10 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster({.steps = 40}, seed);
    cluster.join(1);
    cluster.join(2);
    cluster.submit();
    while (cluster.step() < 8) cluster.turn();
    const MemoryStore backup = cluster.store();
    while (cluster.step() < 20) cluster.turn();
    cluster.store() = backup;
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    EXPECT_EQ(cluster.core().counters().protocol_errors, 0u);
    const std::string notices = testing::PrintToString(cluster.notices());
    EXPECT_NE(notices.find("has come further than this broker remembers"), std::string::npos) << notices;
    cluster.check_log();
  }
}

TEST(Restart, InTheMiddleOfStepsThatAreDoneAgain) {
  for (int moment = 5; moment < 120 && !testing::Test::HasFailure(); moment += 5) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.steps = 60, .checkpoint_steps = 40, .stage_bytes = 100'000'000}, 4);
    for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
    cluster.submit();
    while (cluster.step() < 18) cluster.turn();
    cluster.lose(cluster.peer_of_stage(0));
    for (int i = 0; i < moment; ++i) cluster.turn();
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    EXPECT_EQ(cluster.core().counters().protocol_errors, 0u);
    cluster.check_log();
    cluster.check_script();
  }
}

// What the planner chose for `microbatch_size: auto` is kept from the first run on, by every other plan.
TEST(Restart, TheSizeOfMicrobatchesIsKept) {
  broker::World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().microbatch_size, 0u) << "nothing has run";
  world.plan_and_ready(2, 50);
  MemoryStore store;
  ASSERT_TRUE(store.append(world.records));
  for (const bool run_is_there : {true, false}) {
    if (!run_is_there) {
      const std::vector<broker::Record> ended{broker::RunEnded{1}};
      ASSERT_TRUE(store.append(ended));
    }
    broker::World again(store.load().value());
    again.wait(Duration{});
    again.wait(std::chrono::minutes(10));  // the peers before do not come back
    again.join(3, 3);
    again.join(4, 4);
    ASSERT_FALSE(again.plannings.empty()) << run_is_there;
    EXPECT_EQ(again.plannings.back().microbatch_size, 4u) << run_is_there;
  }
}

// On a machine that is busy all of them may be late together: who has just come is not to blame, who has been
// there and says nothing is.
TEST(Restart, WhoComesBackAMomentTooLateIsNotLeftOut) {
  broker::World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  world.plan_and_ready(2, 50);
  MemoryStore store;
  ASSERT_TRUE(store.append(world.records));
  for (const bool is_late : {true, false}) {
    SCOPED_TRACE(is_late);
    broker::World again(store.load().value());
    again.wait(Duration{});
    if (is_late) again.wait(std::chrono::milliseconds(9900));
    for (const uint8_t peer : {1, 2})
      again.join(peer, peer, broker::TokenVerdict::Valid, 0, proto::StageHeld{1, world.version, {peer - 1u}});
    ASSERT_TRUE(again.plannings.empty());
    again.wait(std::chrono::milliseconds(is_late ? 200 : 10100));
    EXPECT_EQ(again.plannings.size(), is_late ? 1u : 0u) << "two peers are needed";
  }
}

TEST(Restart, AStopUnderWayIsNotForgotten) {
  int stopped = 0;
  for (int moment = 0; moment < 60 && !testing::Test::HasFailure(); moment += 3) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.steps = 1000}, 4);
    cluster.join(1);
    cluster.join(2);
    cluster.submit();
    while (cluster.step() < 6) cluster.turn();
    cluster.stop_job();
    for (int i = 0; i < moment; ++i) cluster.turn();
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    EXPECT_EQ(cluster.state(), JobState::Stopped);
    EXPECT_EQ(cluster.store().state().jobs.at(1).checkpoints.back().step, cluster.step());
    cluster.check_log();
    ++stopped;
  }
  EXPECT_EQ(stopped, 20);
}

TEST(Restart, ADrainUnderWayGoesOn) {
  for (int moment = 0; moment < 60 && !testing::Test::HasFailure(); moment += 3) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.steps = 40, .checkpoint_steps = std::nullopt}, 4);
    for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
    cluster.submit();
    while (cluster.step() < 6) cluster.turn();
    const uint8_t leaves = cluster.peer_of_stage(0);
    cluster.drain(leaves);
    for (int i = 0; i < moment; ++i) cluster.turn();
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    EXPECT_EQ(cluster.state(), JobState::Finished);
    EXPECT_TRUE(cluster.peer(leaves).left);
    cluster.check_log();
  }
}

TEST(Laws, TheSameEventsGiveTheSameRecordsAndEffects) {
  Cluster cluster({.evaluate_every = 4, .forward_microbatches = 20}, 12);
  cluster.tracing = true;
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  for (int i = 0; i < 80; ++i) cluster.turn();
  cluster.lose(1);
  ASSERT_TRUE(cluster.play());
  const auto play_again = [&] {
    broker::Broker again({.software = "0.1.0"}, {});
    std::string all;
    for (size_t i = 0; i < cluster.trace.size(); ++i)
      all += describe(again.step({Instant{} + cluster.trace_times[i], 1000}, cluster.trace[i])) + "\n";
    return all;
  };
  EXPECT_EQ(play_again(), cluster.described);
  EXPECT_GT(cluster.described.size(), 10000u);
}

}  // namespace
}  // namespace weft::test
