// A job that serves a model: it goes on until it is stopped, whatever happens to its peers and its broker,
// and what is said of where its requests go.
#include <gtest/gtest.h>

#include "tests/broker/serving_world.h"

namespace weft::broker {
namespace {

TEST(Serving, AJobGoesThroughItsPhasesAndThenServesWithoutCommandsUntilItIsStopped) {
  ServingWorld world;
  world.submit_served("m");
  ASSERT_TRUE(world.newest());
  EXPECT_EQ(world.newest()->model.name, "m") << "known before there is a plan";
  EXPECT_FALSE(world.newest()->entry);
  EXPECT_EQ(world.newest()->unavailable, "waits for peers: needs 2, 0 are free");
  world.join(1, 1);
  world.join(2, 2);
  EXPECT_EQ(world.newest()->unavailable, "it is being planned");
  world.plan();
  EXPECT_EQ(world.states[1], JobState::Loading);
  EXPECT_EQ(world.newest()->unavailable, "its stages are being loaded");
  world.ready();
  EXPECT_EQ(world.states[1], JobState::Running);
  ASSERT_TRUE(world.newest()->entry);
  EXPECT_EQ(*world.newest()->entry, world.at_stage[0]);
  EXPECT_EQ(world.newest()->plan_version, world.version);
  EXPECT_EQ(world.newest()->model.context, 32u);
  EXPECT_EQ(world.newest()->created, 1);
  EXPECT_EQ(world.broker.status(1)->reason, "serves as m");

  const size_t said = world.said.size();
  world.live(3600);
  EXPECT_EQ(world.states[1], JobState::Running) << "nothing is asked of it within any deadline";
  EXPECT_EQ(world.said.size(), said) << "nothing has changed";
  EXPECT_EQ(world.commands(), 0u);

  world.receive(100, proto::GetResult{.job = 1});
  ASSERT_FALSE(world.messages<proto::Refusal>(100).empty());
  EXPECT_FALSE(world.messages<proto::Refusal>(100).back().retry) << "nobody waits for it";
  world.receive(100, proto::StopJob{.job = 1});
  EXPECT_EQ(world.states[1], JobState::Stopped);
  EXPECT_EQ(world.events.back().text, "stopped by its user");
  EXPECT_FALSE(world.newest());
  for (const ConnectionId peer : {1, 2}) EXPECT_EQ(world.messages<proto::ReleaseStage>(peer).size(), 1u);
  world.receive(100, proto::GetResult{.job = 1});
  EXPECT_EQ(world.messages<proto::Refusal>(100).back().message, "job 1 serves a model: it has no result");
}

TEST(Serving, AnyPeerThatIsLostIsReplacedUnderANewPlanVersion) {
  for (const uint32_t lost : {0u, 1u}) {
    SCOPED_TRACE("stage " + std::to_string(lost));
    ServingWorld world;
    world.serve();
    world.join(3, 3);
    const proto::PlanVersion before = world.version;
    const PeerId stays = world.at_stage[1 - lost];
    world.leave(world.connection_of(world.at_stage[lost]));
    ASSERT_TRUE(world.newest());
    EXPECT_FALSE(world.newest()->entry);
    ASSERT_FALSE(world.plannings.empty());
    EXPECT_NE(world.plannings.back().previous, nullptr) << "its stages stay as they are";
    EXPECT_FALSE(world.plannings.back().checkpoint);
    world.plan();
    world.ready();
    EXPECT_EQ(world.states[1], JobState::Running);
    EXPECT_GT(world.version, before);
    EXPECT_EQ(world.at_stage[1 - lost], stays);
    EXPECT_EQ(world.at_stage[lost], key(3));
    EXPECT_EQ(*world.newest()->entry, world.at_stage[0]);
    EXPECT_EQ(world.newest()->plan_version, world.version);
    const auto assigned = world.messages<proto::AssignStage>(3);
    ASSERT_EQ(assigned.size(), 1u);
    EXPECT_EQ(assigned[0].tensors.at(0).sha256, test::key(static_cast<uint8_t>(50 + lost)).digest);
    EXPECT_TRUE(assigned[0].serve);
    EXPECT_EQ(world.notices().back(), "serving again after 0.0 s");
  }
}

TEST(Serving, WithNobodyLeftItWaitsAndSaysSo) {
  ServingWorld world;
  world.serve();
  world.leave(2);
  world.live(600);
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_EQ(world.newest()->unavailable, "waits for peers: needs 2, 1 is free") << "without names of peers";
  world.join(12, 2);
  world.plan();
  world.ready();
  EXPECT_EQ(world.states[1], JobState::Running);
}

TEST(Serving, AStageThatFailsAndAPeerThatLeavesAreReplaced) {
  ServingWorld world;
  world.serve();
  world.join(3, 3);
  const PeerId failed = world.at_stage[1];
  world.receive(world.connection_of(failed),
                proto::StageFailed{.run = 1,
                                   .plan_version = world.version,
                                   .error = {ErrorCode::Internal, "a row is not finite"},
                                   .diverged = true});
  EXPECT_EQ(world.states[1], JobState::Planning) << "numbers that are not finite are no end of what serves";
  world.plan();
  world.ready();
  EXPECT_EQ(world.states[1], JobState::Running);
  EXPECT_EQ(std::count(world.at_stage.begin(), world.at_stage.end(), failed), 0);

  world.join(4, 4);
  const PeerId leaves = world.at_stage[0];
  world.receive(world.connection_of(leaves), proto::Drain{});
  EXPECT_FALSE(world.newest()->entry);
  world.plan();
  world.ready();
  EXPECT_EQ(world.states[1], JobState::Running);
  EXPECT_EQ(std::count(world.at_stage.begin(), world.at_stage.end(), leaves), 0);
}

TEST(Serving, IsNeverGivenUp) {
  ServingWorld world;
  world.serve();
  for (int loss = 0; loss < 60; ++loss) {
    const ConnectionId connection = world.connection_of(world.at_stage[loss % 2]);
    const uint8_t who = world.here.at(connection);
    world.leave(connection);
    world.join(static_cast<ConnectionId>(1000 + loss), who);
    world.live(300);  // pauses grow, up to a bound
    ASSERT_FALSE(world.plannings.empty()) << loss;
    world.plan();
    if (loss % 3 == 0) world.ready();  // else it is lost while it loads
    ASSERT_EQ(world.states[1], loss % 3 == 0 ? JobState::Running : JobState::Loading);
  }
}

// A loss a week, say, is no row of losses.
TEST(Serving, HavingServedForAWhileIsAsGoodAsAStep) {
  ServingWorld world;
  world.serve();
  for (int loss = 0; loss < 5; ++loss) {
    world.live(120);
    const uint8_t who = world.here.at(world.connection_of(world.at_stage[0]));
    world.leave(world.connection_of(world.at_stage[0]));
    world.join(static_cast<ConnectionId>(1000 + loss), who);
    ASSERT_FALSE(world.plannings.empty()) << "at once, without a pause";
    world.plan();
    world.ready();
    ASSERT_EQ(world.states[1], JobState::Running);
  }
}

// Peers that are lost together are one event, however their ends are heard of: while others take the place of
// the first one, or just behind.
TEST(Serving, AsManyAreReplacedAtOnceAsItHasStages) {
  for (const bool while_it_loads : {false, true}) {
    SCOPED_TRACE(while_it_loads ? "lost while it loads" : "lost while it runs");
    ServingWorld world;
    world.serve();
    for (uint8_t who = 3; who <= 8; ++who) world.join(who, who);
    world.live(120);
    for (uint32_t loss = 0; loss < kStages; ++loss) {
      world.leave(world.connection_of(world.at_stage[loss]));
      ASSERT_FALSE(world.plannings.empty()) << "loss " << loss << ": at once, without a pause";
      world.plan();
      if (!while_it_loads || loss + 1 == kStages) world.ready();
    }
    EXPECT_EQ(world.states[1], JobState::Running);
    world.leave(world.connection_of(world.at_stage[0]));
    EXPECT_TRUE(world.plannings.empty()) << "one more is a row of them";
    world.live(1);
    EXPECT_FALSE(world.plannings.empty()) << "a second later";
    world.plan();
    world.ready();
    world.leave(world.connection_of(world.at_stage[0]));
    world.live(1);
    EXPECT_TRUE(world.plannings.empty()) << "the pause doubles";
    world.live(1);
    EXPECT_FALSE(world.plannings.empty());
  }
}

TEST(Serving, WhoStandsByHasTheTensorsAndTakesTheStage) {
  ServingWorld world;
  world.serve();
  world.join(3, 3);
  world.join(4, 4);
  std::set<Digest> held;
  for (const ConnectionId spare : {3, 4}) {
    const auto lists = world.messages<proto::StandBy>(spare);
    ASSERT_FALSE(lists.empty());
    EXPECT_TRUE(lists.back().sources.empty()) << "the broker has them";
    for (const auto& tensor : lists.back().tensors) held.insert(tensor.sha256);
  }
  EXPECT_EQ(held, (std::set<Digest>{test::key(50).digest, test::key(51).digest}));
  const auto of_fourth = world.messages<proto::StandBy>(4).back();
  world.receive(4, proto::StandingBy{.run = 1, .step = 0, .failure = {}, .list = of_fourth.list});
  const size_t stage = of_fourth.tensors.at(0).sha256 == test::key(50).digest ? 0 : 1;
  world.leave(world.connection_of(world.at_stage[stage]));
  world.plan();
  EXPECT_EQ(world.at_stage[stage], key(4)) << "who has its tensors gets it";
  world.ready();
  world.receive(100, proto::StopJob{.job = 1});
  EXPECT_TRUE(world.messages<proto::StandBy>(3).back().tensors.empty()) << "they let go";
}

TEST(Serving, AfterARestartItsStagesGoOnWithoutAPlan) {
  ServingWorld before;
  before.serve();
  ServingWorld world(before.stored());
  world.now = before.now + std::chrono::seconds(1);
  world.step(Tick{});
  ASSERT_TRUE(world.newest());
  EXPECT_FALSE(world.newest()->entry);
  EXPECT_EQ(world.newest()->model.context, 32u);
  const proto::PlanVersion version = before.version;
  for (uint8_t who : {2, 1}) {
    const uint32_t stage = before.at_stage[0] == key(who) ? 0 : 1;
    world.join(who, who, {proto::StageHeld{.run = 1, .plan_version = version, .seat = {stage}}});
    EXPECT_EQ(world.messages<proto::ResumeStage>(who).size(), 1u);
    world.receive(who, proto::StageResumed{.run = 1, .plan_version = version, .last_sequence = 0});
  }
  EXPECT_EQ(*world.newest()->entry, before.at_stage[0]);
  EXPECT_EQ(world.newest()->plan_version, version);
  world.live(600);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.broker.status(1)->state, JobState::Running);
  EXPECT_EQ(world.commands(), 0u);
}

TEST(Serving, AfterARestartStagesThatDoNotComeBackAreGivenToOthers) {
  ServingWorld before;
  before.serve();
  ServingWorld world(before.stored());
  world.now = before.now + std::chrono::seconds(1);
  world.step(Tick{});
  const uint32_t stage = before.at_stage[0] == key(1) ? 0 : 1;
  world.join(1, 1, {proto::StageHeld{.run = 1, .plan_version = before.version, .seat = {stage}}});
  world.receive(1, proto::StageResumed{.run = 1, .plan_version = before.version, .last_sequence = 0});
  world.join(3, 3);
  world.live(30);
  ASSERT_FALSE(world.plannings.empty());
  world.plan();
  world.ready();
  EXPECT_EQ(world.broker.status(1)->state, JobState::Running);
  EXPECT_EQ(*world.newest()->entry, world.at_stage[0]);
  EXPECT_GT(world.newest()->plan_version, before.version);
}

TEST(Serving, AfterARestartWhileItWaitsItsNameIsKnown) {
  ServingWorld before;
  before.serve();
  before.leave(2);
  ServingWorld world(before.stored());
  world.now = before.now + std::chrono::seconds(1);
  world.step(Tick{});
  ASSERT_TRUE(world.newest());
  EXPECT_EQ(world.newest()->model.name, "m");
  EXPECT_FALSE(world.newest()->unavailable.empty());
}

// One that comes back while the connection before is not known to be gone: its run goes on.
TEST(Serving, AnEntryThatDialsAnewIsThePlaceAgainOnceItHasResumed) {
  ServingWorld world;
  world.serve();
  const PeerId entry = world.at_stage[0];
  const ConnectionId old = world.connection_of(entry);
  const uint8_t who = world.here.at(old);
  world.now += std::chrono::seconds(5);
  world.here.erase(old);
  world.join(50, who, {proto::StageHeld{.run = 1, .plan_version = world.version, .seat = {0}}});
  EXPECT_FALSE(world.newest()->entry);
  world.receive(50, proto::StageResumed{.run = 1, .plan_version = world.version, .last_sequence = 0});
  EXPECT_EQ(*world.newest()->entry, entry);
  EXPECT_TRUE(world.plannings.empty());
}

TEST(Serving, OfTwoJobsWithOneNameTheLaterOneWaitsUntilTheOtherHasEnded) {
  for (const bool is_said : {true, false}) {
    SCOPED_TRACE(is_said ? "known from the submission" : "known from the plan");
    ServingWorld world;
    world.serve();
    world.join(3, 3);
    world.join(4, 4);
    world.submit_served("m", 101, is_said);
    if (!is_said) world.plan();
    EXPECT_EQ(world.states[2], JobState::Waiting);
    EXPECT_EQ(world.broker.status(2)->reason, "waits for a name: job 1 serves as 'm'");
    world.live(20);
    EXPECT_TRUE(world.plannings.empty()) << "it is not planned over and over";
    EXPECT_TRUE(std::none_of(world.said.begin(), world.said.end(), [](const auto& one) {
      return one.job == 2;
    })) << "one job answers for a name";
    world.submit_served("n", 102, is_said);
    ASSERT_FALSE(world.plannings.empty()) << "another name is free";
    world.plannings.clear();
    world.receive(102, proto::StopJob{.job = 3});

    world.receive(100, proto::StopJob{.job = 1});
    world.plan();
    world.ready(2);
    EXPECT_EQ(world.states[2], JobState::Running);
    EXPECT_TRUE(world.newest(2)->entry);
  }
}

// A loss is no end: nobody takes the name meanwhile.
TEST(Serving, AJobKeepsItsNameWhileItHasNoPeers) {
  ServingWorld world;
  world.serve();
  world.leave(2);
  world.submit_served("m", 101);
  world.join(3, 3);
  ASSERT_FALSE(world.plannings.empty());
  EXPECT_EQ(world.plannings.back().job, 1u);
  world.plan();
  world.ready();
  EXPECT_EQ(world.states[1], JobState::Running);
  EXPECT_EQ(world.states[2], JobState::Waiting);
}

TEST(Serving, TokensAreNotTheCoresAndReportsOfStepsAreNoneOfItsStages) {
  ServingWorld world;
  world.serve();
  const uint64_t dropped = world.broker.counters().stale_dropped;
  world.receive(1, proto::ServeProgress{.run = 1, .plan_version = world.version, .request = 1});
  EXPECT_EQ(world.broker.counters().stale_dropped, dropped + 1);
  EXPECT_EQ(world.states[1], JobState::Running);
  const auto expect_refused = [&](const Message& message) {
    ServingWorld other;
    other.serve();
    other.receive(1, message);
    EXPECT_EQ(other.broker.counters().protocol_errors, 1u) << proto::name_of(message);
  };
  expect_refused(proto::StepReport{.run = 1, .plan_version = 1, .step = 1, .squares = {}, .updated = true});
  expect_refused(proto::CheckpointReport{.run = 1, .plan_version = 1, .step = 1, .tensors = {}});
  expect_refused(proto::EvaluationReport{.run = 1, .plan_version = 1, .loss = {1.0}});
  expect_refused(proto::PredictionReport{.run = 1, .plan_version = 1, .microbatch = 0, .outputs = {}});
  expect_refused(proto::ComparisonReport{.run = 1, .plan_version = 1, .step = 1});
}

}  // namespace
}  // namespace weft::broker
