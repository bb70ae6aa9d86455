// Peers that are not what they seem: two of one identity, leftovers of connections, slow ones, liars.
#include <gtest/gtest.h>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobState;

std::string notices(const World& world) {
  std::string all;
  for (const auto& event : world.events)
    if (event.kind == proto::JobEventKind::Notice) all += event.text + "\n";
  return all;
}

TEST(Identity, ASecondProcessWithItIsRefusedWhileTheFirstIsHeard) {
  World world;
  world.join(1, 1, TokenVerdict::Valid, /*instance=*/11);
  world.join(2, 1, TokenVerdict::Valid, /*instance=*/22);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{2}));
  const auto refusal = world.messages<proto::Refusal>(2).at(0);
  EXPECT_EQ(refusal.code, ErrorCode::Unavailable);
  EXPECT_TRUE(refusal.retry);
  EXPECT_NE(refusal.message.find("--data-dir"), std::string::npos);
  world.receive(1, proto::Heartbeat{.sequence = 1});
  EXPECT_EQ(world.messages<proto::HeartbeatAck>(1).size(), 1u);
}

TEST(Identity, TakesThePlaceOfOneThatWasNotHeardForAWhile) {
  World world;
  world.join(1, 1, TokenVerdict::Valid, /*instance=*/11);
  world.wait(std::chrono::milliseconds(3500));
  world.join(2, 1, TokenVerdict::Valid, /*instance=*/22);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{1}));
  EXPECT_EQ(world.messages<proto::HelloAck>(2).size(), 1u);
}

TEST(Identity, TheSameProcessThatComesBackWithItsStageGoesOnWithIt) {
  World world;
  world.run_two_stages(100);
  world.report_step(1);
  const ConnectionId old = world.peers[0];
  world.join(50, static_cast<uint8_t>(old), TokenVerdict::Valid, 0, proto::StageHeld{1, world.version, {}});
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{old}));
  ASSERT_EQ(world.messages<proto::ResumeStage>(50).size(), 1u);
  // What it says before it has resumed, it will say again.
  proto::StepReport early{.run = 1, .plan_version = world.version, .step = 2};
  early.squares = {4.0};
  early.updated = true;
  world.receive(50, early);
  EXPECT_EQ(world.broker.counters().stale_dropped, 1u);
  world.receive(50, proto::StageResumed{1, world.version, 4});
  const auto commands = world.messages<proto::Command>(50);
  ASSERT_FALSE(commands.empty());
  EXPECT_EQ(commands.front().sequence, 5u);
  world.peers[0] = 50;
  for (uint64_t step = 2; step <= 5; ++step) world.report_step(step);
  EXPECT_EQ(world.events.back().step, 5u);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.broker.counters().protocol_errors, 0u);
}

TEST(Identity, AStageThatTheBrokerDoesNotKnowIsReleased) {
  World world;
  world.join(1, 1, TokenVerdict::Valid, 0, proto::StageHeld{9, 4, {}});
  const auto released = world.messages<proto::ReleaseStage>(1);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].run, 9u);
  EXPECT_EQ(released[0].plan_version, 4u);
}

// A core that was held up for two leases: what its gates have told reaches up to before that.
TEST(Lease, IsJudgedByWhatCameAndNotByWhenItIsLookedAt) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  const Instant before = world.now;
  world.now += std::chrono::seconds(20);
  world.step(Tick{.heard_until = before});
  EXPECT_TRUE(world.closed.empty()) << "nobody knows who was silent since";
  world.step(Heard{1, world.now, {}});
  world.step(Tick{.heard_until = world.now});
  EXPECT_EQ(world.closed, std::vector<ConnectionId>{2});
  world.step(Heard{1, before, {}});  // an older one
  world.now += std::chrono::seconds(9);
  world.step(Tick{.heard_until = world.now});
  EXPECT_EQ(world.closed.size(), 1u);
  world.step(Heard{99, world.now, {}});  // of a connection that is gone
}

// Heartbeats of both stages, a second of computing at a time; `slow` does a hundredth of what was promised.
void work(World& world, int seconds_of_work, int slow, std::vector<uint64_t>& done,
          std::vector<double>& busy) {
  for (int i = 0; i < seconds_of_work && world.plannings.empty(); ++i) {
    world.now += std::chrono::seconds(1);
    for (int s = 0; s < static_cast<int>(world.peers.size()); ++s) {
      done[s] += s == slow ? 1 : 100;
      busy[s] += 1;
      world.receive(world.peers[s],
                    proto::Heartbeat{.sequence = 1,
                                     .memory_free = {},
                                     .work = proto::StageWork{1, world.version, done[s], busy[s]}});
    }
    world.step(Tick{});
  }
}

TEST(Slow, APeerAtOnePerCentOfItsSpeedIsReplaced) {
  World world;
  world.join(3, 3);
  world.run_two_stages(1000);
  std::vector<uint64_t> done(2, 0);
  std::vector<double> busy(2, 0);
  work(world, 4, 1, done, busy);
  EXPECT_TRUE(world.plannings.empty()) << "not before five seconds of computing";
  const ConnectionId slow = world.peers[1];
  work(world, 2, 1, done, busy);
  ASSERT_EQ(world.plannings.size(), 1u);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(slow)));
  EXPECT_NE(notices(world).find("computes 100 times slower than promised"), std::string::npos)
      << notices(world);
}

TEST(Slow, OneThatBecomesSlowLateIsFoundAsSoon) {
  World world;
  world.join(3, 3);
  world.run_two_stages(1000);
  std::vector<uint64_t> done(2, 0);
  std::vector<double> busy(2, 0);
  work(world, 45, -1, done, busy);
  EXPECT_TRUE(world.plannings.empty());
  work(world, 20, 0, done, busy);
  EXPECT_EQ(world.plannings.size(), 1u);
}

TEST(Slow, WhenAllAreThePromiseWasWrong) {
  World world;
  world.join(3, 3);
  world.run_two_stages(1000);
  std::vector<uint64_t> done(2, 0);
  std::vector<double> busy(2, 0);
  for (int i = 0; i < 30; ++i) {
    busy[0] += 99;
    busy[1] += 99;
    work(world, 1, -1, done, busy);
  }
  EXPECT_TRUE(world.plannings.empty());
}

TEST(Slow, WithNobodyFreeItIsSaidOnce) {
  World world;
  world.run_two_stages(1000);
  std::vector<uint64_t> done(2, 0);
  std::vector<double> busy(2, 0);
  work(world, 50, 1, done, busy);
  EXPECT_TRUE(world.plannings.empty());
  const std::string said = notices(world);
  EXPECT_NE(said.find("nobody is free"), std::string::npos) << said;
  EXPECT_EQ(said.find("nobody is free"), said.rfind("nobody is free"));
}

TEST(Slow, WorkOfAnotherPlanIsNotCounted) {
  World world;
  world.join(3, 3);
  world.run_two_stages(1000);
  for (int i = 1; i < 50; ++i)
    world.receive(
        world.peers[0],
        proto::Heartbeat{
            .sequence = 1, .memory_free = {}, .work = proto::StageWork{1, world.version + 1, 0, 10.0 * i}});
  EXPECT_TRUE(world.plannings.empty());
}

TEST(Lies, TheSamplesOfAnotherStepEndTheConnection) {
  World world;
  world.run_two_stages(100);
  proto::StepReport wrong{.run = 1, .plan_version = world.version, .step = 1};
  wrong.squares = {1.0};
  wrong.sample_positions = {8, 12};
  world.receive(world.peers[0], wrong);
  EXPECT_EQ(world.broker.counters().protocol_errors, 1u);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{world.peers[0]}));
}

TEST(Repeated, AStepThatHasAnotherLossTheSecondTimeIsTold) {
  World world;
  world.join(3, 3);
  world.copies = false;
  world.run_two_stages(100);
  world.report_step(1);
  world.step(Disconnected{world.peers[0], "gone"});
  world.plan_and_ready(2, 100);
  world.loss = 7.0;
  world.report_step(1);
  const std::string said = notices(world);
  EXPECT_NE(said.find("1 committed step is done again"), std::string::npos) << said;
  EXPECT_NE(said.find("bits are not equal"), std::string::npos) << said;
  EXPECT_EQ(std::count_if(world.events.begin(), world.events.end(),
                          [](const auto& e) { return e.kind == proto::JobEventKind::Step; }),
            1);
}

// A stranger may come with as many keys as it likes: each was listed, and published every second, for ever.
TEST(Gone, OnlySoManyAreRememberedAndThoseThatAreNeeded) {
  BrokerOptions options{.software = "0.1.0"};
  options.pool.gone_max = 20;
  World world({}, options);
  world.run_two_stages(100);
  world.report_step(1);
  world.step(Disconnected{1, "gone"});
  world.step(Disconnected{2, "gone"});
  for (uint8_t who = 3; who < 150; ++who) {
    world.join(1000u + who, who);
    world.step(Disconnected{1000u + who, "gone"});
    world.wait(std::chrono::seconds(1));
  }
  const auto listed = [&] {
    world.sent.erase(100);
    world.receive(100, proto::ListPeers{});
    const auto lists = world.messages<proto::PeerList>(100);
    std::set<std::string> names;
    for (const auto& peer : lists.at(0).peers) names.insert(peer.name);
    return names;
  };
  const auto names = listed();
  EXPECT_LE(names.size(), 20u);
  for (const char* name : {"peer1", "peer2", "peer149"}) EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_FALSE(names.contains("peer3"));
  world.plannings.clear();
  world.join(2001, 1);
  world.join(2002, 2);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_TRUE(world.plannings[0].previous);
  world.join(2003, 3);
  EXPECT_TRUE(listed().contains("peer3"));
}

}  // namespace
}  // namespace weft::broker
