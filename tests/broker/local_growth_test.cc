// Replicas that come and go: with whom a run goes on, and what it is made of.
#include <gtest/gtest.h>

#include "tests/broker/local_world.h"

namespace weft::broker {
namespace {

using StepList = std::vector<uint64_t>;

// Two replicas; then a third peer comes, and a fourth, whom a plan would leave out; then one goes.
TEST(LocalBroker, ARunGrowsWithPeersThatComeAndGoesOnWithoutThoseThatGo) {
  LocalWorld local({.replicas = 2, .every = 3, .steps = 3000, .checkpoint_steps = 90, .replicas_max = 8});
  local.are_others = true;
  World& world = local.world;
  local.begin(2);
  const auto plans = [&] {
    std::vector<replicas::Begun> all;
    for (const auto& event : world.events)
      if (event.local_steps) all.push_back({*event.local_steps, event.inherited});
    return all;
  };
  ASSERT_EQ(plans().size(), 1u);
  local.play([&] { return world.broker.status(1)->step >= 30; });
  EXPECT_TRUE(world.reconsiders.empty()) << "nobody came";
  world.join(3, 3);
  local.play([&] {
    if (world.reconsiders.empty()) world.wait(std::chrono::milliseconds(500));
    return !world.reconsiders.empty();
  });
  ASSERT_EQ(world.reconsiders.size(), 1u);
  EXPECT_EQ(world.reconsiders[0].request.candidates.size(), 3u);
  world.step(Reconsidered{1, world.reconsiders[0].request.plan_version,
                          Reconsidered::Other{.as_it_is = std::chrono::milliseconds(50),
                                              .as_planned = std::chrono::milliseconds(34),
                                              .replicas = 3,
                                              .peers = {key(1), key(2), key(3)}}});
  EXPECT_NE(local.notices().find("2 replicas become 3 when they agree next"), std::string::npos);
  local.play([&] { return !world.plannings.empty(); });
  ASSERT_FALSE(world.plannings.empty());
  const uint64_t begun = world.plannings.back().checkpoint->made();
  EXPECT_EQ(begun % 6, 0u) << "where two have agreed";
  EXPECT_EQ(world.broker.status(1)->step, begun) << "nothing is done again";
  local.shape.replicas = 3;
  local.shape.begun_after = begun;
  local.plan();
  local.play([&] { return world.broker.status(1)->step >= begun + 90; });
  ASSERT_EQ(plans().size(), 2u);
  EXPECT_EQ(plans()[1].local.begun_after, begun);
  EXPECT_EQ(plans()[1].local.terms.count, 3u);
  EXPECT_EQ(world.broker.status(1)->replicas.steps.size(), 3u);
  // One is lost; nobody can take its place: what is there goes on as two.
  local.lose(2);
  world.wait(std::chrono::seconds(5));
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().previous, nullptr);
  const uint64_t kept = world.plannings.back().checkpoint->made();
  EXPECT_GE(kept, begun);
  local.shape.replicas = 2;
  local.shape.begun_after = kept;
  local.plan();
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(world.states.at(1), JobState::Finished);
  ASSERT_EQ(plans().size(), 3u);
  const auto rounds = rounds_of(plans(), 3000);
  EXPECT_EQ(rounds.back().steps_after(), 3000u);
  EXPECT_EQ(local.steps_of(JobEventKind::Step).back(), 3000u);
  const StepList evaluated = local.steps_of(JobEventKind::Checkpoint);
  EXPECT_TRUE(std::is_sorted(evaluated.begin(), evaluated.end()));
}

// A friend's machine of another kind: it would change the bits, which not everybody minds.
TEST(LocalBroker, ARunGrowsWithOtherKindsOfDevicesUnlessItsBitsHaveToBeEqual) {
  for (const bool required : {false, true}) {
    LocalWorld local({.replicas = 2,
                      .every = 3,
                      .steps = 3000,
                      .checkpoint_steps = 90,
                      .replicas_max = 8,
                      .equal_bits_required = required});
    World& world = local.world;
    local.begin(2);
    local.play([&] { return world.broker.status(1)->step >= 120; });
    world.fingerprint = "another";
    world.join(3, 3);
    for (int i = 0; i < 100 && world.reconsiders.empty(); ++i) {
      world.wait(std::chrono::milliseconds(500));
      local.turn();
    }
    if (required) {
      for (const Reconsider& look : world.reconsiders) EXPECT_EQ(look.request.candidates.size(), 2u);
    } else {
      ASSERT_FALSE(world.reconsiders.empty());
      EXPECT_EQ(world.reconsiders[0].request.candidates.size(), 3u);
    }
  }
}

TEST(LocalBroker, ARunThatWasAboutToGrowWhenItLostSomebodyGrowsAtOnce) {
  LocalWorld local({.replicas = 2, .every = 3, .steps = 3000, .checkpoint_steps = 90, .replicas_max = 8});
  local.are_others = true;
  World& world = local.world;
  local.begin(2);
  local.play([&] { return world.broker.status(1)->step >= 120; });
  world.join(3, 3);
  world.join(4, 4);
  local.play([&] {
    if (world.reconsiders.empty()) world.wait(std::chrono::milliseconds(500));
    return !world.reconsiders.empty();
  });
  ASSERT_EQ(world.reconsiders.size(), 1u);
  world.step(Reconsidered{1, world.reconsiders[0].request.plan_version,
                          Reconsidered::Other{.as_it_is = std::chrono::milliseconds(50),
                                              .as_planned = std::chrono::milliseconds(25),
                                              .replicas = 4,
                                              .peers = {key(1), key(2), key(3), key(4)}}});
  EXPECT_NE(local.notices().find("2 replicas become 4 when they agree next"), std::string::npos);
  local.lose(2);
  local.play([&] { return !world.plannings.empty(); });
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().previous, nullptr) << "not with one of them in its place";
  EXPECT_EQ(world.plannings.back().candidates.size(), 3u);
}

// Lines on which a copy would take minutes: each replica keeps its own.
TEST(LocalBroker, WhatALostReplicaAloneHadIsMadeOfAnother) {
  BrokerOptions options{.software = "0.1.0"};
  options.run.copy_rate = 1;
  LocalWorld local({.replicas = 3, .every = 3, .steps = 300}, {}, options);
  local.are_others = true;
  World& world = local.world;
  world.can_be_reached = true;
  local.begin(3);
  world.join(4, 4);
  local.play([&] { return world.broker.status(1)->step >= 60; });
  for (uint8_t peer = 1; peer <= 3; ++peer)
    for (const auto& command : world.messages<proto::Command>(peer))
      if (command.kind == proto::CommandKind::CopyState) {
        EXPECT_TRUE(command.direct && command.stays);
      }
  EXPECT_TRUE(world.messages<proto::StandBy>(4).empty()) << "it is not to fetch what changes every round";
  const uint64_t before = world.broker.status(1)->step;
  local.lose(2);
  EXPECT_NE(local.notices().find("the others end their round without replica 2; 3 steps are done again"),
            std::string::npos)
      << local.notices();
  EXPECT_TRUE(world.plannings.empty()) << "nobody stops";
  local.play([&] { return !world.plannings.empty(); });
  ASSERT_FALSE(world.plannings.empty());
  const StartPlanning& request = world.plannings.back();
  EXPECT_EQ(request.previous, nullptr) << "another plan says what they begin with";
  ASSERT_TRUE(request.checkpoint.has_value() && request.checkpoint->local.has_value());
  const uint64_t made = request.checkpoint->made();
  EXPECT_EQ(made, before / 9 * 9 + 6) << "what the others made of the round";
  const replicas::Inherited expected{.sets = {0, 0, 2}, .debtless = {1}, .left_out = {1}};
  EXPECT_EQ(request.checkpoint->local->inherited, expected) << "the first one took the means in its place";
  EXPECT_EQ(request.checkpoint->local->given_again,
            (std::vector<replicas::StepRange>{{before / 9 * 9 + 4, 3}}));
  local.shape.begun_after = made;
  local.shape.given_again = request.checkpoint->local->given_again;
  local.plan();
  std::vector<Digest> fetched;
  for (const auto& assign : world.messages<proto::AssignStage>(4)) {
    EXPECT_GE(assign.sources.size(), 1u);
    EXPECT_EQ(assign.after_step, made);
  }
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(world.states.at(1), JobState::Finished);
  std::vector<replicas::Begun> plans;
  for (const auto& event : world.events)
    if (event.local_steps) plans.push_back({*event.local_steps, event.inherited});
  ASSERT_EQ(plans.size(), 2u);
  EXPECT_EQ(plans[1].local.begun_after, made);
  EXPECT_EQ(plans[1].inherited, expected);
  const auto rounds = rounds_of(plans, 300);
  EXPECT_EQ(rounds.back().steps_after(), 300u);
  EXPECT_TRUE(given_again_after(rounds).empty()) << "every step was made";
  EXPECT_EQ(local.steps_of(JobEventKind::Step).back(), 300u);
}

// It is there, and says no more: the others do not go back for it, and it gets no part in what comes next.
TEST(LocalBroker, AReplicaThatSaysNothingAnyMoreIsLeftOut) {
  LocalWorld local({.replicas = 3, .every = 12, .steps = 300, .replicas_max = 3});
  local.are_others = true;
  World& world = local.world;
  local.begin(3);
  world.join(4, 4);
  local.play([&] { return world.broker.status(1)->step >= 50; });
  local.silent = 3;
  local.play([] { return false; });
  EXPECT_LT(world.broker.status(1)->step, 72u);
  for (int i = 0; i < 400 && world.plannings.empty() && !HasFailure(); ++i) {
    local.wait_and_hear(4);
    local.play([&] { return !world.plannings.empty(); });
  }
  EXPECT_NE(local.notices().find("s: the others end their round without replica 3"), std::string::npos)
      << local.notices();
  ASSERT_FALSE(world.plannings.empty());
  const StartPlanning& request = world.plannings.back();
  EXPECT_EQ(request.checkpoint->made(), 36u + 24u);
  EXPECT_EQ(request.checkpoint->local->inherited.left_out, std::vector<uint32_t>{2});
  ASSERT_EQ(request.candidates.size(), 3u);
  for (const Candidate& candidate : request.candidates) EXPECT_FALSE(candidate.peer == key(3));
}

// Another one goes while the run is planned anew: what is left of it is with the third alone.
TEST(LocalBroker, AReplicaThatIsLostWhileAnotherIsReplacedIsMadeOfTheThird) {
  BrokerOptions options{.software = "0.1.0"};
  options.run.copy_rate = 1;
  LocalWorld local({.replicas = 3, .every = 3, .steps = 300}, {}, options);
  local.are_others = true;
  World& world = local.world;
  world.can_be_reached = true;
  local.begin(3);
  for (uint8_t peer = 4; peer <= 6; ++peer) world.join(peer, peer);
  local.play([&] { return world.broker.status(1)->step >= 60; });
  local.lose(2);
  local.play([&] { return !world.plannings.empty(); });
  ASSERT_FALSE(world.plannings.empty());
  const uint64_t made = world.plannings.back().checkpoint->made();
  local.shape.given_again = world.plannings.back().checkpoint->local->given_again;
  local.lose(1);
  local.shape.begun_after = made;
  for (int i = 0; i < 12 && local.seats.size() < 3; ++i) {
    if (!world.plannings.empty()) local.plan();
    world.wait(std::chrono::milliseconds(500));
    while (local.deliver()) {
    }
  }
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(world.states.at(1), JobState::Finished);
  std::vector<replicas::Begun> plans;
  for (const auto& event : world.events)
    if (event.local_steps) plans.push_back({*event.local_steps, event.inherited});
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans.back().local.begun_after, made) << local.notices() << local.reason();
  EXPECT_EQ(plans.back().inherited.sets, (std::vector<uint32_t>{2, 2, 2}));
}

// Every pair takes seconds to measure, and the run does not wait for it: one is enough for whoever has come.
TEST(LocalBroker, WhoCameIsTakenInAfterALossOnceItsLineIsKnown) {
  for (const size_t pairs : {size_t{0}, size_t{1}}) {
    SCOPED_TRACE(std::to_string(pairs) + " of its pairs are measured");
    BrokerOptions options{.software = "0.1.0"};
    options.measures_links = true;
    options.draw_secret = [next = uint8_t{0}]() mutable { return proto::Secret{++next}; };
    LocalWorld local({.replicas = 3, .every = 12, .steps = 300, .replicas_max = 4}, {}, options);
    local.are_others = true;
    World& world = local.world;
    std::set<PeerId> measured_with;
    local.answers = [&](ConnectionId peer, const PeerId& other) {
      if (peer != 4 && other != test::key(4)) return true;
      const PeerId with = peer == 4 ? other : test::key(static_cast<uint8_t>(peer));
      if (measured_with.size() < pairs) measured_with.insert(with);
      return measured_with.contains(with);
    };
    for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
    world.submit(100, 2);
    while (local.deliver()) {
    }
    local.plan();
    local.play([&] { return world.broker.status(1)->step >= 50; });
    world.join(4, 4);
    while (local.deliver()) {
    }
    ASSERT_EQ(measured_with.size(), pairs);
    const uint8_t lost = measured_with.contains(test::key(1)) ? 2 : 1;
    local.lose(lost);
    local.play([&] { return !world.plannings.empty(); });
    ASSERT_FALSE(world.plannings.empty());
    std::set<PeerId> asked;
    for (const Candidate& candidate : world.plannings.back().candidates) asked.insert(candidate.peer);
    std::set<PeerId> expected{test::key(1), test::key(2), test::key(3)};
    expected.erase(test::key(lost));
    if (pairs > 0) expected.insert(test::key(4));
    EXPECT_EQ(asked, expected);
  }
}

// Five replicas, of which some refuse what others have sent.
class RefusalTest : public ::testing::Test {
 protected:
  RefusalTest() { local_.are_others = true; }
  void begin(uint8_t peers = 5) {
    for (uint8_t peer = 1; peer <= peers; ++peer) local_.world.join(peer, peer);
    local_.world.submit(100, 2);
    local_.plan();
    local_.play([&] { return step() >= 70; });
  }
  uint64_t step() { return local_.world.broker.status(1)->step; }
  // The peer, which is its key, says so of the replica, for the agreement that comes next.
  void refuse(uint8_t peer, uint32_t replica, double ratio = 50) {
    const auto& seat = local_.seats.at(peer);
    const uint64_t inner = seat.computed();
    local_.world.receive(peer, proto::DifferenceRefused{.run = 1,
                                                        .plan_version = seat.stage().plan_version,
                                                        .step = (inner / 12 + 1) * 12,
                                                        .replica = replica,
                                                        .ratio = ratio});
  }
  void plan_again(uint64_t plays = 20) {
    const auto& point = *local_.world.plannings.back().checkpoint;
    local_.shape.begun_after = point.made();
    local_.shape.given_again = point.local->given_again;
    local_.plan();
    const uint64_t from = step();
    local_.play([&] { return step() >= from + plays; });
  }

  LocalWorld local_{{.replicas = 5, .every = 12, .steps = 3000, .replicas_max = 5}};
  std::set<uint8_t> accused_;
};

TEST_F(RefusalTest, WhoseDifferencesAreRefusedIsLeftOutAndTheThirdTimeItIsOut) {
  begin();
  uint8_t liar = 0;
  for (int time = 1; time <= 3 && !HasFailure(); ++time) {
    SCOPED_TRACE(time);
    if (liar == 0) liar = local_.peer_of(3);
    const uint32_t replica = local_.seats.at(liar).stage().seat.replica;
    const uint8_t by = local_.peer_of(replica == 0 ? 1 : 0);
    const size_t released = local_.world.messages<proto::ReleaseStage>(liar).size();
    refuse(by, replica);
    EXPECT_EQ(local_.world.messages<proto::ReleaseStage>(liar).size(), released + 1);
    refuse(by, replica);  // another one says so, too
    const std::set<uint8_t> peers = local_.asked();
    EXPECT_EQ(peers.size(), time < 3 ? 5u : 4u) << local_.notices();
    EXPECT_EQ(peers.contains(liar), time < 3);
    if (time == 3) break;
    plan_again();
  }
  EXPECT_NE(local_.notices().find(" would have all learn is 50 times as large as usual: the others end their "
                                  "round without replica 4"),
            std::string::npos)
      << local_.notices();
  EXPECT_NE(local_.notices().find("for the third time: it gets no part in this job any more"),
            std::string::npos)
      << local_.notices();
}

TEST_F(RefusalTest, WhatIsNotFiniteIsSaid) {
  begin();
  refuse(local_.peer_of(0), 2, /*ratio=*/0);
  EXPECT_NE(local_.notices().find("is not finite: the others end their round"), std::string::npos)
      << local_.notices();
}

TEST_F(RefusalTest, WhoAloneRefusesThreeOthersIsOutItself) {
  begin();
  const uint8_t accuser = local_.peer_of(0);
  for (int time = 1; time <= 3 && !HasFailure(); ++time) {
    SCOPED_TRACE(time);
    const uint32_t own = local_.seats.at(accuser).stage().seat.replica;
    // One that it has not accused yet.
    uint8_t next = 0;
    for (const auto& [peer, seat] : local_.seats)
      if (peer != accuser && !accused_.contains(static_cast<uint8_t>(peer)))
        next = static_cast<uint8_t>(peer);
    accused_.insert(next);
    const uint32_t replica = local_.seats.at(next).stage().seat.replica;
    ASSERT_NE(replica, own);
    refuse(accuser, replica);
    const std::set<uint8_t> peers = local_.asked();
    EXPECT_EQ(peers.contains(accuser), time < 3);
    EXPECT_TRUE(peers.contains(next));
    if (time < 3) plan_again();
  }
}

// Of the peers of one replica one may lie: that they are three says nothing of who refuses it.
TEST_F(RefusalTest, TheStagesOfOneReplicaAreNotThreeOthers) {
  local_.shape.stages = local_.shape.replicas = local_.shape.replicas_max = 3;
  begin(9);
  for (int time = 1; time <= 2 && !HasFailure(); ++time) {
    SCOPED_TRACE(time);
    refuse(local_.peer_of(0), 1);
    EXPECT_EQ(local_.notices().find("alone refuses"), std::string::npos) << local_.notices();
    EXPECT_EQ(local_.asked().size(), 9u);
    if (time < 2) plan_again(/*plays=*/5);
  }
}

// Samples of which a step becomes huge, whoever makes it, and is honest.
TEST_F(RefusalTest, WhatThreeMadeOfTheSameSamplesIsTheFaultOfNone) {
  begin();
  for (int time = 1; time <= 3 && !HasFailure(); ++time) {
    SCOPED_TRACE(time);
    uint8_t next = 0;
    std::vector<uint8_t> others;
    for (const auto& [peer, seat] : local_.seats)
      if (next == 0 && !accused_.contains(static_cast<uint8_t>(peer)))
        next = static_cast<uint8_t>(peer);
      else
        others.push_back(static_cast<uint8_t>(peer));
    accused_.insert(next);
    const uint32_t replica = local_.seats.at(next).stage().seat.replica;
    refuse(others.at(0), replica);
    if (time == 3) break;
    for (const size_t other : {1, 2}) refuse(others.at(other), replica);
    EXPECT_TRUE(local_.asked().contains(next));
    plan_again(/*plays=*/5);
  }
  EXPECT_EQ(local_.world.states.at(1), JobState::Failed);
  EXPECT_NE(local_.reason().find("made of the same samples: the model diverges there"), std::string::npos)
      << local_.reason();
}

TEST_F(RefusalTest, TwoStrangersDoNotEndAJob) {
  begin();
  const std::vector<uint8_t> two = {local_.peer_of(0), local_.peer_of(1)};
  for (int time = 1; time <= 3 && !HasFailure(); ++time) {
    SCOPED_TRACE(time);
    uint8_t next = 0;
    for (const auto& [peer, seat] : local_.seats)
      if (peer != two[0] && peer != two[1] && !accused_.contains(static_cast<uint8_t>(peer)))
        next = static_cast<uint8_t>(peer);
    accused_.insert(next);
    const uint32_t replica = local_.seats.at(next).stage().seat.replica;
    for (const uint8_t peer : two) refuse(peer, replica);
    EXPECT_FALSE(local_.asked().empty());
    if (time < 3) plan_again(/*plays=*/5);
  }
  EXPECT_LT(local_.world.states.at(1), JobState::Finished) << local_.reason();
}

TEST(Refusals, OfWhatNoOtherReplicaSendsBreakTheProtocol) {
  for (const uint32_t replica : {0u, 5u, 1000u}) {
    LocalWorld local({.replicas = 5, .every = 12, .steps = 300, .replicas_max = 5});
    local.are_others = true;
    local.begin(5);
    local.play([&] { return local.world.broker.status(1)->step >= 70; });
    uint8_t first = 0;
    for (const auto& [peer, seat] : local.seats)
      if (seat.stage().seat.replica == 0) first = static_cast<uint8_t>(peer);
    local.world.receive(first,
                        proto::DifferenceRefused{.run = 1,
                                                 .plan_version = local.seats.at(first).stage().plan_version,
                                                 .step = 24,
                                                 .replica = replica,
                                                 .ratio = 50});
    EXPECT_EQ(local.world.closed, std::vector<ConnectionId>{first});
  }
}

}  // namespace
}  // namespace weft::broker
