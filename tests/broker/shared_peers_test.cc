// Peers that hold two stages: of a job that trains and of one that serves. Whatever becomes of such a peer,
// both jobs go on.
#include <gtest/gtest.h>

#include "tests/broker/serving_world.h"

namespace weft::broker {
namespace {

constexpr proto::JobNumber kServed = 1, kTrained = 2;

class SharedPeers : public ServingWorld {
 public:
  explicit SharedPeers(const StoredState& state = {}) : ServingWorld(state) { holds = 2; }

  // Its plan, over whom it may have, and every stage is there.
  void train(std::vector<ConnectionId> over) {
    ASSERT_FALSE(plannings.empty());
    const StartPlanning request = plannings.back();
    plannings.clear();
    ASSERT_EQ(request.job, kTrained);
    ASSERT_EQ(request.candidates.size(), over.size());
    const auto plan = plan_for(request, kStages, 100);
    step(PlanningDone{request.job, request.plan_version, plan});
    trained_version = request.plan_version;
    trained_at.clear();
    for (const PlannedStage& stage : plan->stages) trained_at.push_back(stage.peer);
    for (const PeerId& peer : trained_at)
      receive(
          connection_of(peer),
          proto::StageReady{
              .run = kTrained, .plan_version = trained_version, .persistent = {1000}, .microbatch = {100}});
  }
  void begin_both() {
    serve();
    submit(100, kStages);
    train({1, 2});
    ASSERT_EQ(states[kServed], JobState::Running);
    ASSERT_EQ(states[kTrained], JobState::Running);
  }
  proto::StageHeld held_of(proto::JobNumber job, uint8_t who) const {
    const std::vector<PeerId>& at = job == kServed ? at_stage : trained_at;
    return {.run = job,
            .plan_version = job == kServed ? version : trained_version,
            .seat = {at[0] == key(who) ? 0u : 1u}};
  }

  proto::PlanVersion trained_version = 0;
  std::vector<PeerId> trained_at;
};

TEST(SharedPeers, OneTrainsAndOneServesAndNobodyHasAThird) {
  SharedPeers world;
  world.begin_both();
  EXPECT_GT(world.commands(), 0u);
  world.submit(100, kStages);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_NE(world.broker.status(3)->reason.find("peer1 works on job 2"), std::string::npos)
      << world.broker.status(3)->reason;
  world.receive(100, proto::StopJob{.job = kServed});
  EXPECT_EQ(world.states[kServed], JobState::Stopped);
  EXPECT_EQ(world.states[kTrained], JobState::Running);
  EXPECT_TRUE(world.plannings.empty()) << "job 3 trains, too";
  EXPECT_TRUE(world.messages<proto::ReleaseStage>(1).size() == 1 &&
              world.messages<proto::ReleaseStage>(1)[0].run == kServed);
}

TEST(SharedPeers, ThePlannerSeesWhatIsLeft) {
  SharedPeers world;
  world.takes = {1000};
  world.serve();
  world.join(3, 3);
  world.submit(100, kStages);
  ASSERT_FALSE(world.plannings.empty());
  const StartPlanning request = world.plannings.back();
  ASSERT_EQ(request.candidates.size(), 3u);
  for (const Candidate& candidate : request.candidates)
    EXPECT_EQ(candidate.device.memory, Bytes{(1 << 30) - (candidate.peer == key(3) ? 0 : 1000)})
        << candidate.name;
}

TEST(SharedPeers, WhoIsLostIsReplacedInBoth) {
  SharedPeers world;
  world.begin_both();
  world.leave(1);
  EXPECT_NE(world.states[kServed], JobState::Running);
  EXPECT_NE(world.states[kTrained], JobState::Running);
  world.join(3, 3);
  std::map<proto::JobNumber, StartPlanning> asked;
  for (const StartPlanning& request : world.plannings) asked.insert_or_assign(request.job, request);
  ASSERT_EQ(asked.size(), 2u);
  for (const auto& [job, request] : asked) {
    std::set<PeerId> from;
    for (const Candidate& candidate : request.candidates) from.insert(candidate.peer);
    EXPECT_EQ(from, (std::set<PeerId>{key(2), key(3)})) << "job " << job;
  }
}

TEST(SharedPeers, WhoLeavesHandsBothOver) {
  SharedPeers world;
  world.begin_both();
  world.join(3, 3);
  world.receive(1, proto::Drain{});
  EXPECT_FALSE(world.newest(kServed)->entry) << "what serves stops at once";
  bool snapshot = false;
  for (const auto& command : world.messages<proto::Command>(2))
    snapshot = snapshot || command.kind == proto::CommandKind::CopyState ||
               command.kind == proto::CommandKind::Checkpoint;
  EXPECT_TRUE(snapshot) << "what trains stops behind a snapshot";
}

TEST(SharedPeers, AfterARestartBothGoOnWithoutAPlan) {
  SharedPeers before;
  before.begin_both();
  SharedPeers world(before.stored());
  world.now = before.now + std::chrono::seconds(1);
  world.step(Tick{});
  for (const uint8_t who : {2, 1}) {
    const auto served = before.held_of(kServed, who), trained = before.held_of(kTrained, who);
    world.join(who, who, {trained, served});
    ASSERT_EQ(world.messages<proto::ResumeStage>(who).size(), 2u);
    for (const proto::StageHeld& held : {served, trained})
      world.receive(who, proto::StageResumed{.run = held.run,
                                             .plan_version = held.plan_version,
                                             .last_sequence = 0,
                                             .persistent = {1000},
                                             .microbatch = {100}});
  }
  world.live(5);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.broker.status(kServed)->state, JobState::Running);
  EXPECT_EQ(world.broker.status(kTrained)->state, JobState::Running);
  ASSERT_TRUE(world.newest(kServed) && world.newest(kServed)->entry);
  // What each takes is known again, so that what is left may be had.
  world.receive(100, proto::StopJob{.job = kServed});
}

TEST(SharedPeers, WhoComesBackWithOneOfTwoKeepsThat) {
  SharedPeers before;
  before.begin_both();
  SharedPeers world(before.stored());
  world.now = before.now + std::chrono::seconds(1);
  world.step(Tick{});
  world.join(2, 2, {before.held_of(kTrained, 2), before.held_of(kServed, 2)});
  world.join(1, 1, {before.held_of(kTrained, 1)});
  EXPECT_EQ(world.messages<proto::ResumeStage>(1).size(), 1u);
  EXPECT_EQ(world.messages<proto::ResumeStage>(1)[0].run, kTrained);
  const auto released = world.messages<proto::ReleaseStage>(2);
  ASSERT_EQ(released.size(), 1u);
  EXPECT_EQ(released[0].run, kServed) << "it is planned anew";
  // One that it never had is taken from it.
  world.join(9, 9, {{.run = kTrained, .plan_version = 1, .seat = {0}}, {.run = 77, .plan_version = 1}});
  EXPECT_EQ(world.messages<proto::ReleaseStage>(9).size(), 2u);
  EXPECT_TRUE(world.messages<proto::ResumeStage>(9).empty());
}

}  // namespace
}  // namespace weft::broker
