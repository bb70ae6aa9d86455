// The broker's core by hand-moved time: who is admitted, who gets work, what happens when somebody is gone.
#include "broker/broker.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace weft::broker {
namespace {

using proto::JobState;
using proto::Message;

PeerId key(uint8_t n) {
  PeerId id;
  id.digest.bytes[0] = n;
  return id;
}

// A plan of `stages` stages over the first candidates, without graphs: the core looks at none.
std::shared_ptr<PlannedRun> plan_for(const StartPlanning& request, uint32_t stages, uint64_t steps) {
  auto plan = std::make_shared<PlannedRun>();
  plan->steps = steps;
  plan->batch_size = 8;
  plan->microbatches = 2;
  plan->microbatch_size = 4;
  plan->parameter_count = stages;
  plan->fingerprint = "f";
  if (steps == 0) {  // prediction
    plan->forward_microbatches = 16;
    plan->forward_samples = 64;
    plan->prediction_stages = stages;
  }
  for (uint32_t s = 0; s < stages; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = request.job;
    assignment->plan_version = request.plan_version;
    assignment->stage = s;
    assignment->after_step = request.checkpoint ? request.checkpoint->step : 0;
    plan->stages.push_back({request.candidates[s].peer, assignment, {s}});
  }
  return plan;
}

// The world around a core: connections by number, what each was sent, and what became durable.
class World {
 public:
  explicit World(const StoredState& state = {}) : broker({.software = "0.1.0"}, state) {}

  Effects step(const Event& event) {
    Effects effects = broker.step({now, 1000}, event);
    for (const Record& record : effects.records) {
      if (const auto* changed = std::get_if<JobChanged>(&record)) states[changed->job] = changed->state;
      if (const auto* job_event = std::get_if<proto::JobEvent>(&record)) events.push_back(*job_event);
      records.push_back(record);
    }
    for (const Effect& effect : effects.effects) {
      if (const auto* send = std::get_if<Send>(&effect)) sent[send->connection].push_back(*send->message);
      if (const auto* close = std::get_if<Close>(&effect)) closed.push_back(close->connection);
      if (const auto* planning = std::get_if<StartPlanning>(&effect)) plannings.push_back(*planning);
      if (const auto* check = std::get_if<CheckSubmission>(&effect)) checks.push_back(*check);
    }
    return effects;
  }
  void join(ConnectionId connection, uint8_t who, TokenVerdict verdict = TokenVerdict::Valid) {
    proto::Hello hello;
    hello.name = "peer" + std::to_string(who);
    hello.device = proto::DeviceReport{.device = "cpu:1", .memory = {1 << 30}, .fingerprint = "f"};
    step(Introduced{connection, key(who), "test", hello, verdict});
  }
  void submit(ConnectionId client, uint32_t stages) {
    proto::Hello hello;
    hello.role = proto::Role::Submitter;
    step(Introduced{client, key(200), "test", hello, TokenVerdict::Valid});
    step(SubmissionChecked{
        client, proto::SubmitJob{.name = "job", .job = "", .stages = stages, .files = {}}, {}});
  }
  void receive(ConnectionId connection, Message message) {
    step(Received{connection, std::make_shared<const Message>(std::move(message))});
  }
  void wait(Duration duration) {
    now += duration;
    step(Tick{});
  }
  template <typename M>
  std::vector<M> messages(ConnectionId connection) const {
    std::vector<M> found;
    const auto at = sent.find(connection);
    if (at == sent.end()) return found;
    for (const Message& message : at->second)
      if (const auto* m = std::get_if<M>(&message)) found.push_back(*m);
    return found;
  }
  // Two peers (connections 1, 2), a job of two stages, running.
  void run_two_stages(uint64_t steps) {
    join(1, 1);
    join(2, 2);
    submit(100, 2);
    plan_and_ready(2, steps);
  }
  void plan_and_ready(uint32_t stages, uint64_t steps) {
    ASSERT_FALSE(plannings.empty());
    const StartPlanning request = plannings.back();
    plannings.clear();
    const auto plan = plan_for(request, stages, steps);
    plan->predicted_step = predicted_step;
    step(PlanningDone{request.job, request.plan_version, plan});
    version = request.plan_version;
    peers.clear();
    for (uint32_t s = 0; s < stages; ++s) peers.push_back(request.candidates[s].peer.digest.bytes[0]);
    for (const ConnectionId peer : peers)
      receive(peer, proto::StageReady{
                        .run = request.job, .plan_version = version, .persistent = {}, .microbatch = {}});
  }
  void report_step(uint64_t number) {
    for (size_t s = 0; s < peers.size(); ++s) {
      proto::StepReport report;
      report.run = 1;
      report.plan_version = version;
      report.step = number;
      report.squares = {4.0};
      if (s + 1 == peers.size()) report.losses = {1.0, 3.0};
      report.updated = true;
      receive(peers[s], report);
    }
  }
  void report_checkpoint(uint64_t number) {
    for (const ConnectionId peer : peers)
      receive(peer,
              proto::CheckpointReport{.run = 1, .plan_version = version, .step = number, .tensors = {}});
  }

  Instant now = Instant{} + std::chrono::hours(1);
  Broker broker;
  std::map<ConnectionId, std::vector<Message>> sent;
  std::vector<ConnectionId> closed;
  std::vector<StartPlanning> plannings;
  std::vector<CheckSubmission> checks;
  std::vector<Record> records;
  std::vector<proto::JobEvent> events;
  std::map<proto::JobNumber, JobState> states;
  proto::PlanVersion version = 0;
  Duration predicted_step{};
  std::vector<ConnectionId> peers;  // connection = key, by stage
};

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
  // The default checkpoint is asked for at the last granted step: reach and report it.
  const auto commands = world.messages<proto::Command>(world.peers[0]);
  const auto checkpoint = std::find_if(commands.begin(), commands.end(), [](const auto& c) {
    return c.kind == proto::CommandKind::Checkpoint;
  });
  ASSERT_NE(checkpoint, commands.end());
  for (uint64_t step = 6; step <= checkpoint->step; ++step) world.report_step(step);
  world.report_checkpoint(checkpoint->step);
  world.report_step(checkpoint->step + 1);
  const ConnectionId lost = world.peers[0];
  world.step(Disconnected{lost, "reset by peer"});
  ASSERT_EQ(world.plannings.size(), 1u);
  ASSERT_TRUE(world.plannings[0].checkpoint.has_value());
  EXPECT_EQ(world.plannings[0].checkpoint->step, checkpoint->step);
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

TEST(Recovery, AJobThatOnlyFailsEndsWithTheReason) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  for (int attempt = 0; attempt < 20 && world.states[1] != JobState::Failed; ++attempt) {
    world.plan_and_ready(2, 100);
    const ConnectionId peer = world.peers[0];
    world.receive(peer, proto::StageFailed{.run = 1,
                                           .plan_version = world.version,
                                           .error = {ErrorCode::Unavailable, "no way there"},
                                           .unreachable_stage = 1});
  }
  EXPECT_EQ(world.states[1], JobState::Failed);
  EXPECT_NE(world.events.back().text.find("no way there"), std::string::npos);
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
    for (const ConnectionId peer : world.peers)
      world.receive(peer,
                    proto::PredictionReport{
                        .run = 1, .plan_version = world.version, .microbatch = microbatch, .outputs = {}});
  }
  EXPECT_EQ(world.plannings.size(), 1u);
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

TEST(Drain, ARunMovesFromACheckpointWithoutRedoingAStep) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  const ConnectionId leaving = world.peers[0];
  world.receive(leaving, proto::Drain{});
  const auto last = world.messages<proto::Command>(leaving).back();
  ASSERT_EQ(last.kind, proto::CommandKind::Checkpoint);
  for (uint64_t step = 2; step <= last.step; ++step) world.report_step(step);
  world.report_checkpoint(last.step);
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
