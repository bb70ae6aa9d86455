// Stages that fail: how often a job is tried, with whom, and with which words it ends.
#include <gtest/gtest.h>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobState;

TEST(Recovery, AJobThatOnlyFailsEndsWithTheReason) {
  World world({}, {.software = "0.1.0", .failure_pause = {}, .failure_pause_max = {}});
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  for (int attempt = 0; attempt < 20 && world.states[1] != JobState::Failed; ++attempt) {
    world.plan_and_ready(2, 100);
    const ConnectionId peer = world.peers[0];
    world.receive(peer, proto::StageFailed{.run = 1,
                                           .plan_version = world.version,
                                           .error = {ErrorCode::Unavailable, "no way there"},
                                           .unreachable = plan::Seat{1}});
  }
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("no way there"), std::string::npos);
}

// One peer's word that any would fail ends no job while somebody else is free to try.
TEST(Recovery, AJobThatCannotWorkEndsWhenTwoPeersSaySo) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  const auto give_up = [&](ConnectionId peer) {
    world.receive(peer, proto::StageFailed{.run = 1,
                                           .plan_version = world.version,
                                           .error = {ErrorCode::OutOfRange, "label 12 of 10 classes"},
                                           .permanent = true});
  };
  const ConnectionId first = world.peers[0];
  give_up(first);
  ASSERT_NE(world.states[1], JobState::Failed);
  ASSERT_EQ(world.plannings.size(), 1u);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(first)));
  world.plan_and_ready(2, 100);
  give_up(world.peers[0]);
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("label 12 of 10 classes"), std::string::npos);
}

proto::StageFailed refusal_of(const World& world) {
  return {
      .run = 1, .plan_version = world.version, .error = {ErrorCode::Unsupported, "only f32 is trained here"}};
}

// What one device lacks another may have: all who are free are asked, whatever their number.
TEST(Recovery, AJobThatEveryPeerRefusesEndsWithTheirWords) {
  World world;
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  world.submit(100, 1);
  for (int refused = 1; refused <= 3; ++refused) {
    ASSERT_NE(world.states[1], JobState::Failed) << refused;
    world.plan_and_ready(1, 100);
    world.receive(world.peers[0], refusal_of(world));
    for (int ticks = 0; ticks < 100 && world.plannings.empty() && world.states[1] == JobState::Waiting;
         ++ticks) {
      for (const ConnectionId peer : {1, 2, 3}) world.receive(peer, proto::Heartbeat{});
      world.wait(std::chrono::milliseconds(500));
    }
  }
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("only f32 is trained here"), std::string::npos)
      << world.events.back().text;
}

// Three of a kind speak for all of it.
TEST(Recovery, OthersOfTheKindThatRefusedAreNotAsked) {
  World world;
  for (uint8_t peer = 1; peer <= 9; ++peer) world.join(peer, peer);
  world.submit(100, 1);
  int asked = 0;
  while (world.states[1] != JobState::Failed && asked < 9) {
    world.plan_and_ready(1, 100);
    ++asked;
    world.receive(world.peers[0], refusal_of(world));
    for (int ticks = 0; ticks < 100 && world.plannings.empty() && world.states[1] == JobState::Waiting;
         ++ticks) {
      for (ConnectionId peer = 1; peer <= 9; ++peer) world.receive(peer, proto::Heartbeat{});
      world.wait(std::chrono::milliseconds(500));
    }
  }
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_EQ(asked, 3);
}

TEST(Recovery, AJobThatCannotWorkEndsAtOnceWhereNobodyElseIsFree) {
  World world;
  world.run_two_stages(100);
  world.receive(world.peers[0], proto::StageFailed{.run = 1,
                                                   .plan_version = world.version,
                                                   .error = {ErrorCode::OutOfRange, "label 12 of 10 classes"},
                                                   .permanent = true});
  EXPECT_EQ(world.states[1], JobState::Failed);
}

// What fails at once, again and again, is given time, twice as much each time, in which its peers are free.
TEST(Recovery, LossesWithoutAStepBetweenThemWaitLongerAndLonger) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  std::vector<int> waited;  // ticks of half a second
  while (world.states[1] != JobState::Failed) {
    world.plan_and_ready(2, 100);
    world.receive(world.peers[0], proto::StageFailed{.run = 1,
                                                     .plan_version = world.version,
                                                     .error = {ErrorCode::Unavailable, "no way there"},
                                                     .unreachable = plan::Seat{1}});
    int ticks = 0;
    for (; world.plannings.empty() && world.states[1] == JobState::Waiting; ++ticks) {
      ASSERT_LT(ticks, 1000);
      for (const ConnectionId peer : {1, 2}) world.receive(peer, proto::Heartbeat{});
      world.wait(std::chrono::milliseconds(500));
    }
    waited.push_back(ticks);
  }
  ASSERT_EQ(waited.size(), BrokerOptions{}.failures_max);
  EXPECT_EQ(std::vector<int>(waited.begin(), waited.begin() + 5), (std::vector<int>{0, 2, 4, 8, 16}));
  EXPECT_EQ(waited[waited.size() - 2], 240) << "two minutes at most";
  EXPECT_NE(world.events.back().text.find("weft resume 1"), std::string::npos) << world.events.back().text;
}

// The stage goes to a spare, and who lost its device gets nothing more, although it is still there; once it
// has joined anew it may have one.
TEST(Recovery, AStageWhoseDeviceIsLostGoesToSomebodyElse) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  const ConnectionId lost = world.peers[0];
  const auto lose = [&](ConnectionId peer) {
    world.receive(peer, proto::StageFailed{.run = 1,
                                           .plan_version = world.version,
                                           .error = {ErrorCode::DeviceLost, "it fell off the bus"}});
  };
  lose(lost);
  ASSERT_EQ(world.plannings.size(), 1u);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(lost)));
  world.receive(lost, proto::Drain{});
  world.plan_and_ready(2, 100);
  EXPECT_EQ(world.states[1], JobState::Running);
  EXPECT_EQ(world.broker.counters().substitutions, 1u);
  lose(world.peers[1]);
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("peer" + std::to_string(lost) + " has lost its device"),
            std::string::npos)
      << world.events.back().text;
  world.step(Disconnected{lost, "it left"});
  world.join(9, static_cast<uint8_t>(lost));
  EXPECT_EQ(world.plannings.size(), 1u);
}

TEST(Recovery, DevicesThatAreLostAreNotHeldAgainstTheJob) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  for (int attempt = 0; attempt < 30; ++attempt) {
    world.plan_and_ready(2, 100);
    const ConnectionId peer = world.peers[0];
    world.receive(peer, proto::StageFailed{.run = 1,
                                           .plan_version = world.version,
                                           .error = {ErrorCode::DeviceLost, "it fell off the bus"}});
    ASSERT_EQ(world.states[1], JobState::Waiting);
    world.receive(peer, proto::Drain{});
    world.step(Disconnected{peer, "it left"});
    world.join(peer, static_cast<uint8_t>(peer), TokenVerdict::Valid, static_cast<uint64_t>(attempt));
    ASSERT_EQ(world.plannings.size(), 1u);
  }
}

}  // namespace
}  // namespace weft::broker
