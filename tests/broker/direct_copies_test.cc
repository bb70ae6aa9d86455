// Copies that go from a stage straight to who stands by for it: the broker has none of them, and a run goes
// back to them all the same.
#include <gtest/gtest.h>

#include "tests/broker/cluster.h"

namespace weft::test {
namespace {

using proto::JobState;

// 5 MB over 12.5 MB/s: a copy every few steps of 0.1 s, which no commit waits for.
ClusterOptions large(uint32_t stages) {
  return {.stages = stages,
          .steps = 40,
          .checkpoint_steps = std::nullopt,
          .stage_bytes = 5'000'000,
          .submitted_stages = stages};
}

std::set<uint64_t> direct_steps(const Cluster& cluster) {
  std::set<uint64_t> steps;
  for (const auto& [job, commands] : cluster.commands)
    for (const proto::Command& command : commands)
      if (command.direct) steps.insert(command.step);
  return steps;
}

// The newest snapshot before that step which the broker has.
std::string at_broker(const Cluster& cluster, uint64_t step) {
  std::string newest;
  for (const proto::Command& command : cluster.commands.at(1)) {
    if (command.step >= step || command.direct) continue;
    if (command.kind == proto::CommandKind::Checkpoint)
      newest = "the checkpoint of step " + std::to_string(command.step);
    if (command.kind == proto::CommandKind::CopyState)
      newest = "the copy of step " + std::to_string(command.step);
  }
  return newest;
}

void play_until_recovery_point_is_direct(Cluster& cluster) {
  while (cluster.state() != JobState::Running || cluster.core().status(1)->recovery_step == 0 ||
         !direct_steps(cluster).contains(cluster.core().status(1)->recovery_step)) {
    cluster.turn();
    ASSERT_LT(cluster.state(), JobState::Finished) << "no copy went directly";
  }
}

TEST(DirectCopies, GoToTheSpareAndNotToTheBroker) {
  Cluster cluster(large(2), 1);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  play_until_recovery_point_is_direct(cluster);
  const uint64_t step = cluster.core().status(1)->recovery_step;
  for (uint32_t stage = 0; stage < 2; ++stage) {
    EXPECT_FALSE(cluster.broker_has(cluster.digest(stage, step)));
    EXPECT_TRUE(cluster.peer(3).held.contains(cluster.digest(stage, step)));
  }
  EXPECT_FALSE(direct_steps(cluster).contains(cluster.commands.at(1).front().step));
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  cluster.check_script();
  EXPECT_TRUE(cluster.notices().empty()) << testing::PrintToString(cluster.notices());
}

TEST(DirectCopies, AreWhatTheRunGoesBackTo) {
  for (uint32_t stage = 0; stage < 2; ++stage) {
    Cluster cluster(large(2), 2);
    for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
    cluster.submit();
    play_until_recovery_point_is_direct(cluster);
    const uint64_t step = cluster.core().status(1)->recovery_step;
    cluster.lose(cluster.peer_of_stage(stage));
    ASSERT_TRUE(cluster.play());
    cluster.check_log();
    const std::string notices = testing::PrintToString(cluster.notices());
    EXPECT_NE(notices.find("going on from the copy of step " + std::to_string(step)), std::string::npos)
        << notices;
    EXPECT_EQ(notices.find("cannot be had"), std::string::npos) << notices;
  }
}

// Whatever goes when, the run ends; what the newest copy needs from a peer that is gone as well, the copy or
// checkpoint before gives.
TEST(DirectCopies, SurviveWhoeverIsLost) {
  for (uint64_t seed = 0; seed < 400 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ClusterOptions options = large(1 + seed % 3);
    if (seed % 2 == 0) options.checkpoint_steps = 11;
    if (seed % 5 == 0) options.submitted_stages = 0;
    Cluster cluster(options, seed);
    const auto peers = static_cast<uint8_t>(options.stages + 1 + seed % 4);
    for (uint8_t peer = 1; peer <= peers; ++peer) cluster.join(peer);
    cluster.submit();
    Rng rng(seed, 9);
    for (int i = 0; i < 4; ++i) {
      for (uint64_t turn = 0, turns = 20 + rng.below(150); turn < turns; ++turn) cluster.turn();
      if (cluster.state() >= JobState::Finished) break;
      switch (rng.below(6)) {
        case 0:
          cluster.crash_broker();
          break;
        case 1:
          cluster.drain(static_cast<uint8_t>(1 + rng.below(peers)));
          break;
        default:
          cluster.lose(static_cast<uint8_t>(1 + rng.below(peers)));
          if (rng.below(2) == 0) cluster.lose(static_cast<uint8_t>(1 + rng.below(peers)));
      }
    }
    for (uint8_t peer = 20; peer <= 24; ++peer) cluster.join(peer);
    EXPECT_TRUE(cluster.play()) << "the job does not end";
    cluster.check_log();
    cluster.check_script();
  }
}

TEST(DirectCopies, WithTheSpareGoneTooWhatTheBrokerHasServes) {
  ClusterOptions options = large(2);
  options.checkpoint_steps = 20;
  options.steps = 100;
  options.stage_bytes = 1'000'000;
  Cluster cluster(options, 6);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.step() < 22) cluster.turn();
  play_until_recovery_point_is_direct(cluster);
  const std::string left = at_broker(cluster, cluster.core().status(1)->recovery_step);
  cluster.lose(3);
  cluster.lose(cluster.peer_of_stage(0));
  for (uint8_t peer = 8; peer <= 9; ++peer) cluster.join(peer);
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  const std::string notices = testing::PrintToString(cluster.notices());
  EXPECT_NE(notices.find("going on from " + left + ","), std::string::npos) << notices;
}

TEST(DirectCopies, WithTheSpareGoneTooAndNoCheckpointYetTheCopyThatTheBrokerHasServes) {
  Cluster cluster(large(2), 6);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  play_until_recovery_point_is_direct(cluster);
  const std::string left = at_broker(cluster, cluster.core().status(1)->recovery_step);
  for (uint8_t peer = 1; peer <= 3; ++peer)
    if (!cluster.peer(peer).stage) cluster.lose(peer);
  cluster.lose(cluster.peer_of_stage(0));
  for (uint8_t peer = 8; peer <= 9; ++peer) cluster.join(peer);
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  const std::string notices = testing::PrintToString(cluster.notices());
  EXPECT_NE(notices.find("going on from " + left + ","), std::string::npos) << notices;
}

TEST(DirectCopies, WhoOnlyClaimsToHaveOneCostsNoMoreThanWhatIsSinceTheBrokersCopy) {
  ClusterOptions options = large(2);
  options.checkpoint_steps = 20;
  options.steps = 100;
  options.stage_bytes = 1'000'000;
  Cluster cluster(options, 7);
  for (uint8_t peer = 1; peer <= 3; ++peer) {
    cluster.join(peer);
    cluster.peer(peer).claims = true;
  }
  cluster.submit();
  while (cluster.step() < 22) cluster.turn();
  play_until_recovery_point_is_direct(cluster);
  const uint64_t step = cluster.core().status(1)->recovery_step;
  const std::string left = at_broker(cluster, step);
  cluster.lose(cluster.peer_of_stage(0));
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  const std::string notices = testing::PrintToString(cluster.notices());
  EXPECT_NE(notices.find("the copy of step " + std::to_string(step) + " cannot be had"), std::string::npos)
      << notices;
  EXPECT_NE(notices.find("going back to " + left), std::string::npos) << notices;
}

TEST(DirectCopies, WhereTheSpareCannotFetchThemTheyGoToTheBroker) {
  Cluster cluster(large(2), 3);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.peer(3).fetches = false;
  cluster.submit();
  while (direct_steps(cluster).empty()) cluster.turn();
  const uint64_t first = *direct_steps(cluster).begin();
  while (cluster.core().status(1)->recovery_step <= first) {
    cluster.turn();
    ASSERT_LT(cluster.state(), JobState::Finished);
  }
  EXPECT_TRUE(cluster.broker_has(cluster.digest(0, cluster.core().status(1)->recovery_step)));
  ASSERT_TRUE(cluster.play());
  const auto notices = cluster.notices();
  ASSERT_EQ(notices.size(), 1u) << testing::PrintToString(notices);
  EXPECT_EQ(notices[0],
            "copies of the state go through the broker until the next plan: peer peer3: nobody has it");
  cluster.check_log();
}

TEST(DirectCopies, NotWherePeersCannotBeReached) {
  ClusterOptions options = large(2);
  options.reachable = false;
  Cluster cluster(options, 4);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  ASSERT_TRUE(cluster.play());
  EXPECT_TRUE(direct_steps(cluster).empty());
}

TEST(DirectCopies, NotBetweenPeersThatDoNotKnowThem) {
  ClusterOptions options = large(2);
  options.minor = proto::kProtocolMinorOfDirectCopies - 1;
  Cluster cluster(options, 5);
  for (uint8_t peer = 1; peer <= 3; ++peer) cluster.join(peer);
  cluster.submit();
  while (cluster.step() < 20) cluster.turn();
  cluster.lose(cluster.peer_of_stage(1));
  ASSERT_TRUE(cluster.play());
  cluster.check_log();
  EXPECT_TRUE(direct_steps(cluster).empty());
  EXPECT_NE(testing::PrintToString(cluster.notices()).find("going on from the copy of step"),
            std::string::npos);
}

TEST(DirectCopies, NotToASpareThatWouldHaveToFetchFromManyAtOnce) {
  for (const uint8_t spares : {1, 2}) {
    Cluster cluster(large(3), 4);
    for (uint8_t peer = 1; peer <= 3 + spares; ++peer) cluster.join(peer);
    cluster.submit();
    ASSERT_TRUE(cluster.play());
    EXPECT_EQ(direct_steps(cluster).empty(), spares == 1);
  }
}

TEST(DirectCopies, NotWithoutAPeerToHoldThem) {
  Cluster cluster(large(2), 4);
  for (uint8_t peer = 1; peer <= 2; ++peer) cluster.join(peer);
  cluster.submit();
  ASSERT_TRUE(cluster.play());
  EXPECT_TRUE(direct_steps(cluster).empty());
}

}  // namespace
}  // namespace weft::test
