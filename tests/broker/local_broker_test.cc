// A broker whose job has replicas that make local steps: what people are told of it, what it goes back to,
// and how it comes to its end.
#include <gtest/gtest.h>

#include "tests/broker/local_world.h"

namespace weft::broker {
namespace {

using StepList = std::vector<uint64_t>;

const proto::JobResult* result_in(const World& world) {
  const proto::JobResult* result = nullptr;
  for (const Record& record : world.records)
    if (const auto* committed = std::get_if<ResultCommitted>(&record)) result = &committed->result;
  return result;
}

TEST(LocalBroker, PeopleAreToldOfStepsOfTheRun) {
  LocalWorld local({.replicas = 2, .stages = 2, .every = 3, .steps = 20, .checkpoint_steps = 6});
  local.begin(4);
  local.play([&] { return local.world.broker.status(1)->step >= 8; });
  const auto status = local.world.broker.status(1);
  ASSERT_TRUE(status.has_value());
  EXPECT_EQ(status->step, 8u);
  EXPECT_EQ(status->steps, 20u);
  EXPECT_EQ(status->checkpoint_step, 6u);
  EXPECT_EQ(status->recovery_step, 6u);
  ASSERT_EQ(status->stages.size(), 4u);
  for (const auto& stage : status->stages) EXPECT_GE(stage.step, 8u);
  EXPECT_EQ(status->stages[1].seat, (plan::Seat{0, 1}));
  EXPECT_GT(status->samples_per_second, 0);
  EXPECT_DOUBLE_EQ(status->seconds_left, 12 * test::kLocalBatch / status->samples_per_second);

  local.play([&] { return local.has_ended(); });
  ASSERT_EQ(local.world.states.at(1), JobState::Finished);
  // 1 2 3 | 4 5 6, 7 8 9 | 10 11 12, 13 14 15 | 16 17 18, 19 | 20.
  EXPECT_EQ(local.steps_of(JobEventKind::Step), (StepList{2, 4, 6, 8, 10, 12, 14, 16, 18, 20}));
  EXPECT_EQ(local.steps_of(JobEventKind::Checkpoint), (StepList{6, 12, 18, 20}));
  EXPECT_EQ(local.steps_of(JobEventKind::Result), StepList{20});
  const auto* result = result_in(local.world);
  ASSERT_NE(result, nullptr);
  EXPECT_EQ(result->step, 20u);
  ASSERT_EQ(result->tensors.size(), 2u) << "each weight once";
  EXPECT_EQ(result->tensors[0].sha256, test::local_digest(result->tensors[0].key, 10));
}

TEST(LocalBroker, ALostSeatCostsTheStepsSinceTheLastAgreement) {
  for (uint8_t lost = 1; lost <= 4; ++lost) {
    SCOPED_TRACE("peer " + std::to_string(lost));
    LocalWorld local({.replicas = 2, .stages = 2, .every = 3, .steps = 40, .checkpoint_steps = 100});
    local.begin(5);
    local.play([&] { return local.world.broker.status(1)->step >= 16; });
    const uint64_t before = local.world.broker.status(1)->step;
    const uint64_t kept = local.world.broker.status(1)->recovery_step;
    EXPECT_EQ(kept, 12u);
    local.lose(lost);
    EXPECT_NE(local.notices().find("going on from the copy of step 12, " + std::to_string(before - 12) +
                                   " committed steps are done again"),
              std::string::npos)
        << local.notices();
    local.plan();
    EXPECT_EQ(local.begun_at, (StepList{0, 12}));
    local.play([&] { return local.has_ended(); });
    ASSERT_EQ(local.world.states.at(1), JobState::Finished);
    StepList all;
    for (uint64_t step = 2; step <= 40; step += 2) all.push_back(step);
    EXPECT_EQ(local.steps_of(JobEventKind::Step), all);
  }
}

TEST(LocalBroker, ARestartedBrokerGoesOnWithIt) {
  const LocalShape shape{
      .replicas = 3, .stages = 1, .every = 4, .steps = 31, .evaluate_every = 10, .checkpoint_steps = 12};
  for (uint64_t at = 3; at < 31; at += 3) {
    SCOPED_TRACE("after step " + std::to_string(at));
    LocalWorld first(shape);
    first.begin(3);
    first.play([&] { return first.world.broker.status(1)->step >= at; });
    const StoredState stored = *first.world.store.load();
    LocalWorld second(shape, stored);
    EXPECT_EQ(second.world.broker.status(1)->steps, 31u);
    EXPECT_EQ(second.world.broker.status(1)->step, first.world.broker.status(1)->step);
    second.seats = first.seats;
    for (const auto& [peer, seat] : first.seats)
      second.world.join(peer, static_cast<uint8_t>(peer), TokenVerdict::Valid, 0,
                        proto::StageHeld{1, seat.stage().plan_version, seat.stage().seat});
    second.world.states[1] = JobState::Running;
    second.play([&] { return second.has_ended(); });
    ASSERT_EQ(second.world.states.at(1), JobState::Finished) << second.reason();
    StepList steps = first.steps_of(JobEventKind::Step);
    for (const uint64_t step : second.steps_of(JobEventKind::Step)) steps.push_back(step);
    // 1-4 | 5-8 | 9-12, 13-16 | 17-20 | 21-24, and of 7 left 25-27 | 28-29 | 30-31.
    EXPECT_EQ(steps, (StepList{3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 31}));
  }
}

TEST(LocalBroker, OneThatWasStoppedGoesOnFromAnAgreement) {
  LocalWorld local({.replicas = 2, .stages = 1, .every = 12, .steps = 60});
  local.begin(2);
  local.play([&] { return local.world.broker.status(1)->step >= 4; });
  local.world.receive(100, proto::StopJob{1});
  local.play([&] { return local.has_ended(); });
  ASSERT_EQ(local.world.states.at(1), JobState::Stopped);
  EXPECT_EQ(local.reason(), "stopped by its user after step 24");
  EXPECT_EQ(local.steps_of(JobEventKind::Checkpoint), StepList{24});
  local.world.receive(100, proto::GetResult{1});
  const auto results = local.world.messages<proto::JobResult>(100);
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].step, 24u);
  ASSERT_EQ(results[0].tensors.size(), 1u);

  local.world.receive(100, proto::ResumeJob{1});
  EXPECT_NE(local.notices().find("resumed by its user: going on from the checkpoint of step 24"),
            std::string::npos);
  local.world.plannings.erase(local.world.plannings.begin(), local.world.plannings.end() - 1);
  local.plan();
  local.play([&] { return local.has_ended(); });
  ASSERT_EQ(local.world.states.at(1), JobState::Finished);
  EXPECT_EQ(local.begun_at, (StepList{0, 24}));
  EXPECT_EQ(local.steps_of(JobEventKind::Step).back(), 60u);
}

TEST(LocalBroker, ReplicasThatHoldDifferentBytesEndTheJob) {
  LocalWorld local({.replicas = 2, .stages = 1, .every = 2, .steps = 8, .checkpoint_steps = 4});
  local.change = [](ConnectionId peer, proto::Message& message) {
    auto* report = std::get_if<proto::CheckpointReport>(&message);
    if (report != nullptr && peer == 2 && report->step == 4) report->tensors[0].sha256.bytes[0] ^= 1;
  };
  local.begin(2);
  local.play([&] { return local.has_ended(); });
  ASSERT_EQ(local.world.states.at(1), JobState::Failed);
  EXPECT_EQ(local.reason(),
            "replicas that had agreed hold different bytes of 'w0/value' after step 8: stage 1 on peer1 and "
            "stage 1, replica 2 on peer2; one of them computed or said something wrong");
}

// Of three replicas one says twice that it holds something else: the third time another peer is in its place.
TEST(LocalBroker, OneReplicaThatHoldsOtherBytesThanTheOthersGetsNoPart) {
  LocalWorld local({.replicas = 3, .stages = 1, .every = 2, .steps = 30, .checkpoint_steps = 6});
  local.change = [](ConnectionId peer, proto::Message& message) {
    auto* report = std::get_if<proto::CheckpointReport>(&message);
    if (report != nullptr && peer == 2) report->tensors[0].sha256.bytes[0] ^= 1;
  };
  local.begin(4);
  const auto asked = [&] {
    local.play([&] { return local.has_ended() || !local.world.plannings.empty(); });
    std::set<PeerId> peers;
    if (!local.world.plannings.empty())
      for (const Candidate& candidate : local.world.plannings.back().candidates) peers.insert(candidate.peer);
    return peers;
  };
  EXPECT_TRUE(asked().contains(test::key(2))) << "it was perhaps sent something else";
  EXPECT_NE(local.notices().find("as most do: going on from"), std::string::npos) << local.notices();
  local.plan();
  EXPECT_EQ(asked(), (std::set<PeerId>{test::key(1), test::key(3), test::key(4)}));
  EXPECT_NE(local.notices().find("peer2 gets no part in this job any more"), std::string::npos)
      << local.notices();
  local.plan();
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(local.world.states.at(1), JobState::Finished) << local.reason();
}

TEST(LocalBroker, AJobThatBeginsAtACheckpointCountsOnFromIt) {
  LocalWorld local({.replicas = 2, .stages = 1, .every = 2, .steps = 15, .begun_after = 6});
  for (uint8_t peer = 1; peer <= 2; ++peer) local.world.join(peer, peer);
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  local.world.step(Introduced{100, test::key(200), "test", hello, TokenVerdict::Valid});
  proto::SubmitJob submission{.name = "job", .job = "", .stages = 2};
  submission.beginning.emplace().step = 6;
  submission.beginning->skipped_steps = 2;
  const dag::StateKey key = dag::of_initializer(test::weight_of(0));
  submission.beginning->tensors = {{key, {dag::DType::F32, dag::Shape({4})}, test::local_digest(key, 6)}};
  local.world.step(SubmissionChecked{100, submission, {}});
  EXPECT_EQ(local.world.plannings.back().checkpoint->skipped_by(1), 2u) << "each goes on with it";
  EXPECT_EQ(local.world.broker.status(1)->step, 6u);
  local.plan();
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(local.world.states.at(1), JobState::Finished);
  // 7 8 | 9 10, 11 12 | 13 14, 15 |.
  EXPECT_EQ(local.steps_of(JobEventKind::Step), (StepList{8, 10, 12, 14, 15}));
}

}  // namespace
}  // namespace weft::broker
