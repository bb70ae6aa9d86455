// Peers that go at any moment: the run ends all the same, and the event log tells of every step once.
#include <gtest/gtest.h>

#include "tests/broker/cluster.h"

namespace weft::test {
namespace {

using proto::JobState;

// Plays `moment` turns, lets `lost` peers go, and plays to the end.
void lose_at(ClusterOptions options, int moment, std::vector<uint8_t> lost, uint8_t spares, uint64_t seed,
             void (Cluster::*how)(uint8_t) = &Cluster::lose) {
  SCOPED_TRACE("moment " + std::to_string(moment) + ", seed " + std::to_string(seed) + ", lost " +
               testing::PrintToString(lost));
  Cluster cluster(options, seed);
  for (uint8_t peer = 1; peer <= options.stages + spares; ++peer) cluster.join(peer);
  cluster.submit();
  for (int i = 0; i < moment && cluster.state() < JobState::Finished; ++i) cluster.turn();
  for (const uint8_t peer : lost) (cluster.*how)(peer);
  EXPECT_TRUE(cluster.play()) << "the job does not end";
  EXPECT_EQ(cluster.state(), JobState::Finished);
  cluster.check_log();
  cluster.check_script();
  EXPECT_EQ(cluster.step(), options.steps);
}

TEST(Loss, OfEachStageAtEachMoment) {
  for (int moment = 0; moment < 160; moment += 2)
    for (uint8_t lost = 1; lost <= 2 && !testing::Test::HasFailure(); ++lost)
      lose_at({.evaluate_every = 4, .forward_microbatches = 20}, moment, {lost}, 1, 77 + moment % 5);
}

TEST(Loss, OfTheDeviceOfEachStageAtEachMoment) {
  for (int moment = 0; moment < 160; moment += 2)
    for (uint8_t lost = 1; lost <= 2 && !testing::Test::HasFailure(); ++lost)
      lose_at({.evaluate_every = 4, .forward_microbatches = 20}, moment, {lost}, 1, 78 + moment % 5,
              &Cluster::lose_device);
}

TEST(Loss, WithClippedGradientsAndSnapshotsNowAndThen) {
  // 5 MB over 12.5 MB/s: a snapshot every 4 steps of 0.1 s.
  for (int moment = 0; moment < 160 && !testing::Test::HasFailure(); moment += 3)
    lose_at({.stages = 3,
             .clip_norm = 1,
             .checkpoint_steps = std::nullopt,
             .stage_bytes = 5'000'000,
             .submitted_stages = 3},
            moment, {static_cast<uint8_t>(1 + moment % 3)}, 1, moment);
}

// A machine that computes wrong costs what was done since the last copy, where somebody else is free; where
// nobody is, it ends the job, also when the broker was restarted in between.
TEST(Divergence, OfOnePeerAloneIsPassedByAnother) {
  for (const bool has_spare : {true, false}) {
    SCOPED_TRACE(has_spare);
    Cluster cluster({.steps = 20}, 3);
    for (uint8_t peer = 1; peer <= (has_spare ? 3 : 2); ++peer) cluster.join(peer);
    cluster.submit();
    while (cluster.state() != JobState::Running) cluster.turn();
    cluster.peer(cluster.peer_of_stage(1)).wrong_from = 9;
    while (cluster.notices().empty()) cluster.turn();
    while (cluster.state() != JobState::Running) cluster.turn();
    cluster.crash_broker();
    EXPECT_TRUE(cluster.play());
    EXPECT_EQ(cluster.state(), has_spare ? JobState::Finished : JobState::Failed);
    EXPECT_EQ(cluster.events().back().diverged, !has_spare);
    cluster.check_log();
  }
}

TEST(Loss, AroundStepsThatAreSkipped) {
  for (int moment = 0; moment < 160 && !testing::Test::HasFailure(); moment += 3)
    lose_at({.skips = {2, 3, 7, 12}, .checkpoint_steps = 4, .stage_bytes = moment % 2 == 0 ? 0 : 5'000'000},
            moment, {static_cast<uint8_t>(1 + moment % 2)}, 1, moment);
}

TEST(Loss, OfTwoAtOnce) {
  for (int moment = 0; moment < 160 && !testing::Test::HasFailure(); moment += 3)
    lose_at({.stages = 3, .submitted_stages = 3}, moment, {1, 3}, 2, moment);
}

TEST(Loss, OfThoseWhoTakeOverToo) {
  for (uint64_t seed = 0; seed < 30 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Cluster cluster({.stages = 3, .steps = 20, .submitted_stages = 3}, seed);
    for (uint8_t peer = 1; peer <= 7; ++peer) cluster.join(peer);
    cluster.submit();
    Rng rng(seed, 9);
    for (int i = 0; i < 4; ++i) {
      for (uint64_t turn = 0, turns = 20 + rng.below(60); turn < turns; ++turn) cluster.turn();
      if (const uint8_t lost = cluster.peer_of_stage(static_cast<uint32_t>(rng.below(3)))) cluster.lose(lost);
    }
    EXPECT_TRUE(cluster.play());
    cluster.check_log();
    cluster.check_script();
  }
}

TEST(Loss, OfMoreThanThereAreSparesPausesTheRunUntilPeersCome) {
  Cluster cluster({.steps = 40}, 3);
  cluster.join(1);
  cluster.join(2);
  cluster.submit();
  while (cluster.step() < 7) cluster.turn();
  cluster.lose(1);
  for (int i = 0; i < 200; ++i) cluster.turn();
  EXPECT_EQ(cluster.state(), JobState::Waiting);
  const std::string reason = cluster.store().state().jobs.at(1).last.reason;
  EXPECT_NE(reason.find("paused after step"), std::string::npos) << reason;
  EXPECT_NE(reason.find("needs 2, 1 is free"), std::string::npos) << reason;
  cluster.join(9);
  EXPECT_TRUE(cluster.play());
  cluster.check_log();
  EXPECT_EQ(cluster.core().counters().substitutions, 1u);
}

TEST(Loss, OfAnAutomaticJobGoesOnWithFewerStages) {
  for (int moment = 40; moment < 120 && !testing::Test::HasFailure(); moment += 7) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.submitted_stages = 0}, 5);
    cluster.join(1);
    cluster.join(2);
    cluster.submit();
    for (int i = 0; i < moment; ++i) cluster.turn();
    cluster.lose(2);
    EXPECT_TRUE(cluster.play());
    cluster.check_log();
  }
}

TEST(Loss, WithSmallStagesRedoesNoCommittedStep) {
  for (int moment = 60; moment < 160 && !testing::Test::HasFailure(); moment += 5) {
    SCOPED_TRACE("moment " + std::to_string(moment));
    Cluster cluster({.checkpoint_steps = std::nullopt}, 5);
    for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
    cluster.submit();
    for (int i = 0; i < moment; ++i) cluster.turn();
    if (const uint8_t lost = cluster.peer_of_stage(0)) cluster.lose(lost);
    EXPECT_TRUE(cluster.play());
    for (const std::string& notice : cluster.notices())
      if (notice.find("done again") != std::string::npos) {
        EXPECT_NE(notice.find(", 0 committed steps are done again"), std::string::npos) << notice;
      }
  }
}

TEST(Loss, IsToldInWordsWithWhoAndFromWhereAndHowLong) {
  Cluster cluster({}, 3);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.step() < 4) cluster.turn();
  const uint8_t lost = cluster.peer_of_stage(0);
  cluster.lose(lost);
  ASSERT_TRUE(cluster.play());
  const auto notices = cluster.notices();
  ASSERT_EQ(notices.size(), 3u) << testing::PrintToString(notices);
  EXPECT_NE(
      notices[0].find("peer peer" + std::to_string(lost) + " is gone (reset by peer): going on from the"),
      std::string::npos)
      << notices[0];
  EXPECT_EQ(notices[1], "stage 1 goes from peer" + std::to_string(lost) + " to peer3");
  EXPECT_EQ(notices[2].find("going on after "), 0u) << notices[2];
}

TEST(StandBy, TheSpareThatHoldsTheStageTakesIt) {
  Cluster cluster({.steps = 40}, 8);
  for (uint8_t peer = 1; peer <= 4; ++peer) cluster.join(peer);
  while (!cluster.peer(1).admitted || !cluster.peer(2).admitted || !cluster.peer(3).admitted ||
         !cluster.peer(4).admitted)
    cluster.turn();
  cluster.submit();
  while (cluster.step() < 26) cluster.turn();
  // Two spares, two stages: peer 3 holds the first's tensors, peer 4 the second's.
  const auto holds = [&](uint8_t peer, uint32_t stage) {
    for (uint64_t step = 1; step <= 40; ++step)
      if (cluster.peer(peer).held.contains(cluster.digest(stage, step))) return true;
    return false;
  };
  EXPECT_TRUE(holds(3, 0));
  EXPECT_FALSE(holds(3, 1));
  EXPECT_TRUE(holds(4, 1));
  cluster.lose(cluster.peer_of_stage(1));
  ASSERT_TRUE(cluster.play());
  const auto notices = cluster.notices();
  EXPECT_NE(testing::PrintToString(notices).find("stage 2 goes from peer2 to peer4"), std::string::npos)
      << testing::PrintToString(notices);
}

TEST(Transient, TheBlobsOfTheCopyAreSpokenOfUntilTheJobEnds) {
  Cluster cluster({.checkpoint_steps = std::nullopt}, 4);
  cluster.join(1);
  cluster.join(2);
  cluster.submit();
  while (cluster.state() != JobState::Running || cluster.core().status(1)->recovery_step < 4) {
    cluster.turn();
    ASSERT_LT(cluster.state(), JobState::Finished);
  }
  const uint64_t step = cluster.core().status(1)->recovery_step;
  EXPECT_TRUE(cluster.kept.contains(cluster.digest(0, step)));
  EXPECT_TRUE(cluster.kept.contains(cluster.digest(1, step)));
  EXPECT_TRUE(cluster.kept.contains(cluster.digest(0, step - 1))) << "somebody may be fetching it";
  EXPECT_FALSE(cluster.kept.contains(cluster.digest(0, step - 2)));
  ASSERT_TRUE(cluster.play());
  EXPECT_TRUE(cluster.kept.empty());
}

TEST(DiskFull, IsSaidOnceAndTheRunEndsWhenThereIsRoomAgain) {
  Cluster cluster({}, 4);
  cluster.join(1);
  cluster.join(2);
  cluster.submit();
  cluster.peer(2).disk_full = true;
  for (int i = 0; i < 3000; ++i) cluster.turn();
  EXPECT_EQ(cluster.step(), 12u) << "the steps themselves need no disk";
  EXPECT_EQ(cluster.state(), JobState::Running);
  EXPECT_EQ(cluster.notices().size(), 1u) << testing::PrintToString(cluster.notices());
  cluster.peer(2).disk_full = false;
  EXPECT_TRUE(cluster.play());
  cluster.check_log();
  cluster.check_script();
}

TEST(Fallback, WhereTheCopyCannotBeHadTheCheckpointBeforeItServes) {
  Cluster cluster({.steps = 60, .checkpoint_steps = 20}, 6);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.step() < 22) cluster.turn();
  cluster.lose(cluster.peer_of_stage(0));
  while (cluster.state() == JobState::Running) cluster.turn();
  cluster.forget_transient();
  for (uint8_t peer = 1; peer <= 3; ++peer)
    if (!cluster.peer(peer).stage) cluster.peer(peer).held.clear();
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  const std::string notices = testing::PrintToString(cluster.notices());
  EXPECT_NE(notices.find("is damaged where the broker keeps it: going back to the checkpoint of step 20"),
            std::string::npos)
      << notices;
  EXPECT_EQ(notices.find("bits are not equal"), std::string::npos) << notices;
}

}  // namespace
}  // namespace weft::test
