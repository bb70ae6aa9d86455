// A broker whose job has replicas that make local steps: what people are told of it, what it goes back to,
// and how it comes to its end.
#include <gtest/gtest.h>

#include "tests/broker/local_seats.h"
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::JobEventKind;
using test::LocalSeat;
using test::LocalShape;
using StepList = std::vector<uint64_t>;

// Peers with seats, by connection, which is also their key.
class LocalWorld {
 public:
  explicit LocalWorld(LocalShape of, const StoredState& state = {},
                      BrokerOptions options = {.software = "0.1.0"})
      : world(state, std::move(options)), shape(std::move(of)) {}

  void begin(uint8_t peers) {
    for (uint8_t peer = 1; peer <= peers; ++peer) world.join(peer, peer);
    world.submit(100, shape.replicas * shape.stages);
    plan();
  }
  void plan() {
    ASSERT_FALSE(world.plannings.empty());
    const StartPlanning request = world.plannings.back();
    world.plannings.clear();
    std::vector<PeerId> peers;
    for (uint32_t s = 0; s < shape.replicas * shape.stages; ++s)
      peers.push_back(request.candidates.at(request.previous ? request.placed.at(s) : s).peer);
    begun_at.push_back(request.checkpoint ? request.checkpoint->made() : 0);
    world.step(PlanningDone{request.job, request.plan_version,
                            test::local_plan(shape, request.checkpoint ? &*request.checkpoint : nullptr,
                                             peers, request.plan_version)});
  }
  void hear(ConnectionId peer, const proto::Message& message) {
    const auto at = seats.find(peer);
    if (const auto* assign = std::get_if<proto::AssignStage>(&message)) {
      for (const auto& tensor : assign->tensors)
        EXPECT_TRUE(are_others || tensor.sha256 == test::local_digest(tensor.key, assign->after_step))
            << to_string(tensor.key) << " after " << assign->after_step;
      seats.insert_or_assign(peer, LocalSeat(shape, std::make_shared<const proto::AssignStage>(*assign)));
      world.receive(peer, proto::StageReady{.run = 1, .plan_version = assign->plan_version});
    } else if (std::get_if<proto::ReleaseStage>(&message) != nullptr) {
      seats.erase(peer);
    } else if (const auto* resume = std::get_if<proto::ResumeStage>(&message)) {
      ASSERT_NE(at, seats.end());
      world.receive(peer, proto::StageResumed{1, resume->plan_version, at->second.last_sequence()});
      for (const proto::Message& said : at->second.said()) world.receive(peer, said);
    } else if (at != seats.end()) {
      at->second.hear(message);
    }
  }
  // Whatever lies at the peers; whether there was anything.
  bool deliver() {
    bool any = false;
    for (uint8_t peer = 1; peer <= 9; ++peer)
      for (size_t& next = read[peer]; next < world.sent[peer].size(); any = true) {
        const proto::Message message = world.sent[peer][next++];
        hear(peer, message);
      }
    return any;
  }
  // One message of a seat; false: nobody has any.
  bool turn() {
    world.now += std::chrono::milliseconds(10);
    while (deliver()) {
    }
    for (auto& [peer, seat] : seats) {
      if (peer == silent) continue;
      uint64_t computed = ~uint64_t{0};
      for (const auto& [other, at] : seats) computed = std::min(computed, at.computed());
      auto message = seat.work(computed);
      if (!message) continue;
      if (change) change(peer, *message);
      world.receive(peer, *message);
      return true;
    }
    return false;
  }
  void play(const std::function<bool()>& until) {
    for (int idle = 0; idle < 3 && !until() && !testing::Test::HasFailure();) idle = turn() ? 0 : idle + 1;
  }
  void lose(uint8_t peer) {
    seats.erase(peer);
    world.step(Disconnected{peer, "reset by peer"});
    world.sent[peer].clear();
    read[peer] = 0;
  }
  StepList steps_of(JobEventKind kind) const {
    StepList steps;
    for (const auto& event : world.events)
      if (event.kind == kind) steps.push_back(event.step);
    return steps;
  }
  bool has_ended() const { return world.states.at(1) >= JobState::Finished; }
  std::string notices() const {
    std::string all;
    for (const auto& event : world.events)
      if (event.kind == JobEventKind::Notice) all += event.text + "\n";
    return all;
  }
  std::string reason() const {
    std::string reason;
    for (const Record& record : world.records)
      if (const auto* changed = std::get_if<JobChanged>(&record)) reason = changed->reason;
    return reason;
  }

  World world;
  LocalShape shape;
  std::map<ConnectionId, LocalSeat> seats;
  std::map<ConnectionId, size_t> read;
  StepList begun_at;                     // each plan, in steps of the run
  bool are_others = false;               // replicas have tensors of others, or of other numbers
  std::optional<ConnectionId> silent{};  // computes nothing any more
  std::function<void(ConnectionId, proto::Message&)> change{};
};

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
    for (uint8_t peer = 1; peer <= 4; ++peer) world.receive(peer, proto::Heartbeat{});
    world.wait(std::chrono::milliseconds(500));
    local.play([&] { return !world.plannings.empty(); });
  }
  EXPECT_NE(
      local.notices().find("waited for stage 1, replica 3: the others end their round without replica 3"),
      std::string::npos)
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

}  // namespace
}  // namespace weft::broker
