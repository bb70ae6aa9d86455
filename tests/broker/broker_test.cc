// The broker's core by hand-moved time: who is admitted, who gets work.
#include <gtest/gtest.h>

#include <algorithm>

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

TEST(Admission, WhoeverIsLetInIsToldTheTimeAndWhereItIsSeen) {
  World world;
  world.join(1, 1);
  const auto greetings = world.messages<proto::HelloAck>(1);
  ASSERT_EQ(greetings.size(), 1u);
  EXPECT_EQ(greetings[0].unix_ms, 1000);
  EXPECT_EQ(greetings[0].address, "test");
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
