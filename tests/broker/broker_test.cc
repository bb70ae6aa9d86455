// The broker's core by hand-moved time: who is admitted, who gets work, what happens when somebody is gone.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dag/op_table.h"
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobState;

TEST(Admission, AnUnknownKeyWithoutATokenIsRefusedAndToldWhy) {
  World world;
  world.join(1, 1, TokenVerdict::None);
  const auto refusals = world.messages<proto::Refusal>(1);
  ASSERT_EQ(refusals.size(), 1u);
  EXPECT_EQ(refusals[0].code, ErrorCode::PermissionDenied);
  EXPECT_NE(refusals[0].message.find("weft token create"), std::string::npos);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{1}));
  EXPECT_TRUE(world.records.empty());
}

TEST(Admission, AKeyOnceAdmittedComesBackWithoutAToken) {
  World world;
  world.join(1, 1);
  ASSERT_EQ(world.records.size(), 1u);
  world.step(Disconnected{1, "gone"});
  world.join(2, 1, TokenVerdict::Revoked);
  EXPECT_EQ(world.messages<proto::HelloAck>(2).size(), 1u);
}

TEST(Admission, AnotherMajorVersionIsRefusedByNameAndShown) {
  World world;
  proto::Hello hello;
  hello.major = 9;
  hello.software = "9.0";
  const Effects effects = world.step(Introduced{1, key(1), "test", hello, TokenVerdict::Valid});
  EXPECT_EQ(world.messages<proto::Refusal>(1).at(0).code, ErrorCode::VersionMismatch);
  bool shown = false;
  for (const Effect& effect : effects.effects)
    if (const auto* peers = std::get_if<PublishPeers>(&effect))
      shown = peers->peers.peers.size() == 1 && peers->peers.peers[0].state == "other version";
  EXPECT_TRUE(shown);
}

TEST(Admission, TheSameKeyTwiceKeepsTheNewerConnection) {
  World world;
  world.join(1, 1);
  world.join(2, 1);
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{1}));
  world.receive(2, proto::Heartbeat{.sequence = 5, .memory_free = {}});
  EXPECT_EQ(world.messages<proto::HeartbeatAck>(2).size(), 1u);
}

TEST(Lease, APeerThatSaysNothingIsGivenUpAfterTheLeaseAndNotBefore) {
  World world;
  world.join(1, 1);
  world.wait(std::chrono::seconds(9));
  EXPECT_TRUE(world.closed.empty());
  world.wait(std::chrono::seconds(2));
  EXPECT_EQ(world.closed, (std::vector<ConnectionId>{1}));
  EXPECT_EQ(world.broker.counters().evicted, 1u);
}

TEST(Jobs, WaitsForPeersSaysForWhatAndStartsByItself) {
  World world;
  world.join(1, 1);
  world.submit(100, 2);
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("needs 2, 1 is free"), std::string::npos)
      << world.events.back().text;
  EXPECT_TRUE(world.plannings.empty());
  world.join(2, 2);
  EXPECT_EQ(world.plannings.size(), 1u);
}

TEST(Jobs, ASecondJobDoesNotGetThePeersOfTheFirst) {
  World world;
  world.run_two_stages(10);
  world.step(
      SubmissionChecked{100, proto::SubmitJob{.name = "next", .job = "", .stages = 1, .files = {}}, {}});
  EXPECT_EQ(world.states[2], JobState::Waiting);
  world.join(3, 3);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_EQ(world.plannings[0].job, 2u);
  EXPECT_EQ(world.plannings[0].candidates.size(), 1u);
}

TEST(Jobs, APeerThatIsExcludedGetsNoPartOfIt) {
  World world;
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  world.submit(100, 2, {"peer2", "attic"});
  const auto notice = std::find_if(world.events.begin(), world.events.end(),
                                   [](const auto& e) { return e.kind == proto::JobEventKind::Notice; });
  ASSERT_NE(notice, world.events.end());
  EXPECT_EQ(notice->text, "excluded, but not known here so far: 'attic'");
  ASSERT_EQ(world.plannings.size(), 1u);
  for (const Candidate& candidate : world.plannings[0].candidates) EXPECT_NE(candidate.name, "peer2");
  world.plan_and_ready(2, 100);
  world.report_step(1);
  world.step(Disconnected{world.peers[0], "gone"});
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("peer2 is excluded by the job"), std::string::npos)
      << world.events.back().text;
  EXPECT_TRUE(world.messages<proto::StandBy>(2).empty()) << "nor its tensors";
}

TEST(Jobs, PeersThatAreTooOldToSkipStepsGetNoPartOfOneThatDoes) {
  World world;
  world.skips_steps = true;
  world.join(1, 1);
  world.join(2, 2, TokenVerdict::Valid, 0, {}, proto::kProtocolMinorOfSkippedSteps - 1);
  world.submit(100, 2);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_NE(world.events.back().text.find("needs 2, 1 is free; peer2 cannot skip steps that diverge"),
            std::string::npos)
      << world.events.back().text;
  world.join(3, 3);
  EXPECT_EQ(world.plannings.size(), 1u);
}

// What codecs write, an older weft gives the link up for: it gets no stage, also not in a recovery or to
// hold.
TEST(Jobs, PeersThatAreTooOldForCodecsGetNoPartOfOneThatCompresses) {
  constexpr uint32_t kOld = proto::kProtocolMinorOfCodecs - 1;
  World world;
  world.join(1, 1);
  world.join(2, 2, TokenVerdict::Valid, 0, {}, kOld);
  world.submit(100, 2, {}, /*compresses=*/true);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("needs 2, 1 is free; peer2 cannot read compressed tensors"),
            std::string::npos)
      << world.events.back().text;
  EXPECT_TRUE(std::any_of(world.events.begin(), world.events.end(), [](const auto& e) {
    return e.kind == proto::JobEventKind::Notice && e.text.find("left out") == 0 &&
           e.text.find("'peer2'") != std::string::npos;
  }));
  world.join(3, 3, TokenVerdict::Valid, 0, {}, proto::kProtocolMinorOfCodecs);
  ASSERT_EQ(world.plannings.size(), 1u);
  ASSERT_EQ(world.plannings[0].candidates.size(), 2u);
  for (const Candidate& candidate : world.plannings[0].candidates) EXPECT_NE(candidate.name, "peer2");
  world.plan_and_ready(2, 100);
  world.report_step(1);
  EXPECT_TRUE(world.messages<proto::StandBy>(2).empty());
  world.step(Disconnected{world.peers[0], "gone"});
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Waiting);
  // One that is brought up to date takes the stage.
  world.step(Disconnected{2, "restarted"});
  world.join(4, 2);
  EXPECT_EQ(world.plannings.size(), 1u);
}

// Nor in a recovery, nor to hold its tensors.
TEST(Jobs, PeersWhoseDevicesLackThePrecisionGetNoPartOfAJob) {
  using dag::Arithmetic;
  World world;
  world.wanted = Arithmetic::TF32;
  world.join(2, 2);  // float32 alone, as all that say nothing of it
  world.arithmetic = {Arithmetic::F32, Arithmetic::BF16};
  world.join(3, 3);
  world.arithmetic = {Arithmetic::F32, Arithmetic::TF32};
  world.join(1, 1);
  world.submit(100, 2);
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("needs 2, 1 is free; peer2 has no arithmetic in tf32, only in f32; "
                                          "peer3 has no arithmetic in tf32, only in f32 and bf16"),
            std::string::npos)
      << world.events.back().text;
  world.join(4, 4);
  ASSERT_EQ(world.plannings.size(), 1u);
  ASSERT_EQ(world.plannings[0].candidates.size(), 2u);
  for (const Candidate& candidate : world.plannings[0].candidates)
    EXPECT_TRUE(candidate.device.has(Arithmetic::TF32)) << candidate.name;
  world.plan_and_ready(2, 100);
  world.report_step(1);
  EXPECT_TRUE(world.messages<proto::StandBy>(2).empty());
  EXPECT_TRUE(world.messages<proto::StandBy>(3).empty());
  world.step(Disconnected{world.peers[0], "gone"});
  EXPECT_TRUE(world.plannings.empty());
  EXPECT_EQ(world.states[1], JobState::Waiting);
}

TEST(Jobs, AnOldPeerTakesPartWhereNothingIsCompressed) {
  World world;
  world.join(1, 1);
  world.join(2, 2, TokenVerdict::Valid, 0, {}, proto::kProtocolMinorOfCodecs - 1);
  world.submit(100, 2);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_EQ(world.plannings[0].candidates.size(), 2u);
}

// A submission from before it was written down: what was planned says it.
TEST(Jobs, APlanWithCodecsSaysThatTheJobCompresses) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  world.join(3, 3, TokenVerdict::Valid, 0, {}, proto::kProtocolMinorOfCodecs - 1);
  world.submit(100, 1);
  ASSERT_EQ(world.plannings.size(), 1u);
  const auto plan = plan_for(world.plannings[0], 1, 100);
  auto assignment = std::make_shared<proto::AssignStage>(*plan->stages[0].assignment);
  dag::GraphBuilder b(dag::op_table());
  const dag::ValueId y = b.add(dag::OpKind::Relu, {b.input("x", {dag::DType::F32, {4}})});
  b.output("y", y, dag::OutputRole::Prediction);
  proto::StageProgram program;
  program.graph = std::make_shared<const dag::Graph>(b.finish());
  program.segment_of_op.assign(program.graph->ops().size(), 0);
  program.segment_count = 1;
  program.sends = {{.value = y, .codec = {.kind = compress::Kind::Float16}}};
  assignment->programs.push_back(std::move(program));
  plan->stages[0].assignment = assignment;
  const StartPlanning request = world.plannings[0];
  world.plannings.clear();
  world.step(PlanningDone{request.job, request.plan_version, plan});
  world.step(Disconnected{request.candidates[0].peer.digest.bytes[0], "gone"});
  ASSERT_FALSE(world.plannings.empty());
  for (const Candidate& candidate : world.plannings.back().candidates) EXPECT_NE(candidate.name, "peer3");
}

TEST(Jobs, RunsToItsEndWithACheckpointOfTheLastStep) {
  World world;
  world.run_two_stages(3);
  EXPECT_EQ(world.states[1], JobState::Running);
  for (uint64_t step = 1; step <= 3; ++step) world.report_step(step);
  EXPECT_NE(world.states[1], JobState::Finished) << "its weights are not safe yet";
  world.report_checkpoint(3);
  EXPECT_EQ(world.states[1], JobState::Finished);
  const auto step = std::find_if(world.events.begin(), world.events.end(),
                                 [](const auto& e) { return e.kind == proto::JobEventKind::Step; });
  ASSERT_NE(step, world.events.end());
  EXPECT_DOUBLE_EQ(step->loss, 2.0);
  EXPECT_DOUBLE_EQ(step->gradient_norm, std::sqrt(8.0) / 2);
  EXPECT_EQ(world.messages<proto::ReleaseStage>(1).size(), 1u);
}

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

proto::StageFailed not_finite_on_an_edge(const World& world, uint64_t step) {
  proto::StageFailed failed{.run = 1, .plan_version = world.version};
  failed.error = {ErrorCode::OutOfRange,
                  "a NaN or an infinity came from stage 1: edge 4, step 2, microbatch 0"};
  failed.permanent = failed.diverged = true;
  failed.unreachable = plan::Seat{0};
  failed.step = step;
  return failed;
}

proto::StepReport not_finite(const World& world, uint64_t step) {
  proto::StepReport report{.run = 1, .plan_version = world.version, .step = step};
  report.squares = {std::numeric_limits<double>::quiet_NaN()};
  report.losses = {1.0, 1.0};
  report.updated = true;
  return report;
}

// Once somebody else in the place of who made the numbers, and then it is the model.
TEST(Divergence, GoesBackOnceAndEndsTheJobWhenItComesAgain) {
  for (const bool on_a_link : {false, true}) {
    SCOPED_TRACE(on_a_link);
    World world;
    world.join(3, 3);
    world.copies = false;
    world.run_two_stages(100);
    const ConnectionId maker = world.peers[on_a_link ? 0 : 1], other = world.peers[on_a_link ? 1 : 0];
    const auto diverge = [&](uint64_t step) {
      if (on_a_link)
        world.receive(world.peers[1], not_finite_on_an_edge(world, step));
      else
        world.receive(world.peers[1], not_finite(world, step));
    };
    diverge(1);
    EXPECT_EQ(world.states[1], JobState::Planning);
    ASSERT_EQ(world.plannings.size(), 1u);
    bool keeps_other = false;
    for (const Candidate& candidate : world.plannings[0].candidates) {
      EXPECT_NE(candidate.peer, key(static_cast<uint8_t>(maker))) << "who made it is not asked again";
      keeps_other = keeps_other || candidate.peer == key(static_cast<uint8_t>(other));
    }
    EXPECT_TRUE(keeps_other);
    world.plan_and_ready(2, 100);
    ASSERT_EQ(world.states[1], JobState::Running);
    diverge(1);
    EXPECT_EQ(world.states[1], JobState::Failed);
    EXPECT_TRUE(world.plannings.empty());
    const proto::JobEvent& end = world.events.back();
    EXPECT_TRUE(end.diverged);
    for (const std::string& says :
         {std::string("not finite: stage 2"), std::string("again after going back"),
          std::string("the model diverged"), std::string("there was no checkpoint yet"),
          std::string(on_a_link ? "edge 4, step 2" : "step 1")})
      EXPECT_NE(end.text.find(says), std::string::npos) << end.text;
    EXPECT_EQ(world.broker.counters().protocol_errors, 0u);
  }
}

// What counts as again: up to the step that it went back for. Past that it was not the model.
TEST(Divergence, ARunThatGetsPastTheStepMayGoBackForAnother) {
  World world;
  world.run_two_stages(100);
  world.report_step(1);
  world.receive(world.peers[1], not_finite(world, 2));
  ASSERT_EQ(world.plannings.size(), 1u) << "the same two, where nobody else is there";
  EXPECT_EQ(world.plannings[0].checkpoint->step, 1u);
  world.plan_and_ready(2, 100);
  world.report_step(2);
  world.receive(world.peers[1], not_finite(world, 3));
  ASSERT_EQ(world.plannings.size(), 1u);
  world.plan_and_ready(2, 100);
  world.receive(world.peers[1], not_finite(world, 3));
  EXPECT_EQ(world.states[1], JobState::Failed);
}

// An old peer does not say of which step: up to the last one that may have been under way it comes again.
TEST(Divergence, OfAnUnknownStepComesAgainUpToTheLastThatWasGranted) {
  for (const bool passes : {false, true}) {
    SCOPED_TRACE(passes);
    World world;
    world.run_two_stages(100);
    world.receive(world.peers[1], not_finite_on_an_edge(world, 0));
    world.plan_and_ready(2, 100);
    for (uint64_t step = 1; step <= (passes ? 8 : 5); ++step) world.report_step(step);
    world.receive(world.peers[1], not_finite_on_an_edge(world, uint64_t{1} << 60));
    EXPECT_EQ(world.states[1], passes ? JobState::Planning : JobState::Failed);
  }
}

TEST(Divergence, SaysWhichCheckpointIsKept) {
  World world;
  world.copies = false;
  world.run_two_stages(2000);
  uint64_t step = 0;
  while (world.messages<proto::Command>(world.peers[0]).back().kind != proto::CommandKind::Checkpoint) {
    ASSERT_LT(step, 2000u);
    world.report_step(++step);
  }
  const uint64_t saved = world.messages<proto::Command>(world.peers[0]).back().step;
  while (step < saved) world.report_step(++step);
  world.report_checkpoint(saved);
  const auto diverge = [&] {
    proto::StepReport report{.run = 1, .plan_version = world.version, .step = saved + 1};
    report.losses = {1.0, std::numeric_limits<double>::infinity()};
    report.squares = {1.0};
    world.receive(world.peers[1], report);
  };
  diverge();
  world.plan_and_ready(2, 2000);
  diverge();
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("the checkpoint of step " + std::to_string(saved) +
                                          " is kept: weft fetch 1"),
            std::string::npos)
      << world.events.back().text;
  world.receive(100, proto::GetResult{1});
  ASSERT_FALSE(world.messages<proto::JobResult>(100).empty()) << "out of the store: it has ended";
  EXPECT_EQ(world.messages<proto::JobResult>(100).back().step, saved);
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

TEST(Planning, OfAJobThatNeverRanEndsItWithItsError) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  ASSERT_EQ(world.plannings.size(), 1u);
  world.step(PlanningDone{1, world.plannings[0].plan_version, fail(ErrorCode::Unavailable, "it died")});
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_EQ(world.events.back().text, "it died");
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
  job.submitted.submission.stages = 2;
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

TEST(Laws, EqualEventsGiveEqualRecords) {
  const auto play = [] {
    World world;
    world.run_two_stages(3);
    for (uint64_t step = 1; step <= 3; ++step) world.report_step(step);
    world.report_checkpoint(3);
    std::string trace;
    for (const Record& record : world.records) {
      trace += std::to_string(record.index()) + ";";
      if (const auto* event = std::get_if<proto::JobEvent>(&record))
        trace += std::to_string(event->sequence) + "," + std::to_string(event->loss) + ";";
    }
    return trace;
  };
  EXPECT_EQ(play(), play());
}

}  // namespace
}  // namespace weft::broker
