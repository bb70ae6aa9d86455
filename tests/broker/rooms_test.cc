// What stands over the rooms of the broker, each by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "broker/admission.h"
#include "broker/availability.h"
#include "broker/clients.h"
#include "broker/jobs/job_phases.h"
#include "broker/jobs/run_records.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using proto::JobState;
using proto::Role;
using std::chrono::seconds;
using test::key;

class Rooms : public testing::Test {
 protected:
  Rooms() { step_.begin({Instant{} + std::chrono::hours(1), 1000}); }

  Job& submit(proto::SubmitJob submission = {}) {
    return book_.submit(key(100), {std::make_shared<const proto::SubmitJob>(std::move(submission)), {}});
  }
  Peer& join(uint8_t n) {
    Peer& peer = pool_.enter(key(n));
    peer.name = "peer-" + std::to_string(n);
    peer.minor = proto::kProtocolMinor;
    peer.last_heard = step_.now.monotonic;
    pool_.connect(peer, n);
    return peer;
  }
  static proto::Hello hello(Role role) {
    proto::Hello hello;
    hello.role = role;
    hello.token = proto::TokenProof{7, {}};
    return hello;
  }
  bool admit(uint8_t who, Role role, TokenVerdict verdict = TokenVerdict::Valid) {
    return admission_.admit({.connection = who, .who = key(who), .hello = hello(role), .verdict = verdict});
  }
  // Of the effects since it was asked last.
  template <typename T>
  size_t count_sent() {
    const Effects effects = step_.end();
    return static_cast<size_t>(
        std::count_if(effects.effects.begin(), effects.effects.end(), [](const Effect& effect) {
          const auto* send = std::get_if<Send>(&effect);
          return send != nullptr && std::holds_alternative<T>(*send->message);
        }));
  }

  BrokerOptions options_{
      .failure_pause = seconds(1),
      .failure_pause_max = seconds(5),
      .failures_max = 6,
      .limits = {.clients_max = 3, .clients_max_of_key = 2, .bulk_max_of_key = 1, .keys_of_token_max = 2}};
  Step step_;
  Pool pool_{options_.pool, step_};
  JobBook book_{step_};
  Runs runs_{options_, step_, pool_, book_};
  StandBys stand_bys_{options_, step_, pool_, book_, runs_};
  Probes probes_{options_, step_, pool_, book_, stand_bys_};
  Availability availability_{pool_, stand_bys_, probes_};
  JobPhases phases_{options_, step_, pool_, book_};
  Clients clients_{options_, step_,   pool_,   book_,
                   runs_,    probes_, phases_, [](Peer&, ErrorCode, const std::string&) {}};
  Admission admission_{options_, step_, pool_, book_, clients_};
};

using JobPhasesTest = Rooms;

TEST_F(JobPhasesTest, PausesGrowWithEachLossUntilTheJobIsGivenUp) {
  Job& job = submit();
  const auto pause = [&]() -> Duration {
    phases_.wait_after_loss(job, "lost");
    const auto* waiting = job.waiting();
    if (waiting == nullptr || !waiting->not_before) return {};
    return *waiting->not_before - step_.now.monotonic;
  };
  for (const int expected : {0, 1, 2, 4, 5}) EXPECT_EQ(pause(), seconds(expected));
  EXPECT_EQ(job.state, JobState::Waiting);
  EXPECT_EQ(pause(), seconds(0));
  EXPECT_EQ(job.state, JobState::Failed);
  EXPECT_NE(job.reason.find("given up after 6 losses"), std::string::npos) << job.reason;
}

TEST_F(JobPhasesTest, AServiceThatStoodForAsLongIsTriedAgainAtOnceAndNeverGivenUp) {
  Job& job = submit();
  job.serving.model.name = "m";
  for (int i = 0; i < 10; ++i) phases_.wait_after_loss(job, "lost");
  ASSERT_EQ(job.state, JobState::Waiting);
  ASSERT_TRUE(job.waiting()->not_before);
  phases_.wait_after_loss(job, "lost", /*served=*/seconds(5));
  EXPECT_FALSE(job.waiting()->not_before);
  EXPECT_EQ(job.losses.in_a_row, 1u);
}

TEST_F(JobPhasesTest, ItsEndLetsItsPeersGo) {
  Job& job = submit();
  auto plan = std::make_shared<PlannedRun>();
  for (const uint8_t n : {1, 2}) {
    join(n).stages[job.number()] = {};
    plan->stages.push_back({{key(n), {n - 1u}, 0.01}, std::make_shared<proto::AssignStage>()});
  }
  plan->relay_tickets.push_back({});
  job.phase = phase::Loading{
      .crew = {.plan = plan, .stages = std::vector<StageAtWork>(2), .loaded_bytes = {}, .copied_bytes = {}}};
  const uint64_t before = pool_.version();
  (void)step_.end();
  phases_.end(job, JobState::Stopped, "stopped");
  EXPECT_TRUE(job.has_ended());
  EXPECT_EQ(job.state, JobState::Stopped);
  EXPECT_TRUE(pool_.at(key(1)).is_idle() && pool_.at(key(2)).is_idle());
  EXPECT_NE(pool_.version(), before) << "whoever waits may find somebody";
  EXPECT_TRUE(step_.jobs);
  const Effects effects = step_.end();
  const auto count = [&](auto is) {
    return std::count_if(effects.effects.begin(), effects.effects.end(), is);
  };
  EXPECT_EQ(count([](const Effect& e) { return std::holds_alternative<RevokeRelay>(e); }), 1);
  EXPECT_EQ(count([](const Effect& e) { return std::holds_alternative<CloseFeed>(e); }), 1);
  EXPECT_EQ(count([](const Effect& e) {
              const auto* send = std::get_if<Send>(&e);
              return send != nullptr && std::holds_alternative<proto::ReleaseStage>(*send->message);
            }),
            2);
}

class RunRecordsTest : public Rooms {
 protected:
  // Of the records since it was asked last.
  template <typename T>
  size_t count_recorded() {
    const Effects effects = step_.end();
    return static_cast<size_t>(
        std::count_if(effects.records.begin(), effects.records.end(),
                      [](const Record& record) { return std::holds_alternative<T>(record); }));
  }

  RunRecords records_{step_, book_};
};

TEST_F(RunRecordsTest, BitsThatDifferAreSaidOnceAndOnlyWhereTheyShouldBeEqual) {
  Job& job = submit();
  const auto is_said = [&](uint64_t step, double loss) {
    (void)step_.end();
    records_.add_repeated(job, {step, loss});
    return count_recorded<proto::JobEvent>() == 1;
  };
  job.log.losses[3] = 0.5;
  job.bits.are_equal = false;
  EXPECT_FALSE(is_said(3, 0.25));
  job.bits.are_equal = true;
  EXPECT_FALSE(is_said(3, 0.5));
  EXPECT_FALSE(is_said(4, 0.25)) << "it is not known what that was";
  EXPECT_TRUE(is_said(3, 0.25));
  EXPECT_FALSE(is_said(3, 0.25));
}

TEST_F(RunRecordsTest, UploadsThatFailAreSaidOnceUntilASnapshotIsWhole) {
  Job& job = submit();
  const auto is_said = [&] {
    (void)step_.end();
    records_.add_upload_failure(job, {1, 8, {ErrorCode::ResourceExhausted, "full"}});
    return count_recorded<proto::JobEvent>() == 1;
  };
  EXPECT_TRUE(is_said());
  EXPECT_FALSE(is_said());
  job.losses.in_a_row = 2;
  records_.add_snapshot(job, {.snapshot = {job.number(), 8, {}, 0}, .is_durable = true});
  EXPECT_EQ(count_recorded<CheckpointCommitted>(), 1u);
  EXPECT_EQ(job.losses.in_a_row, 0u);
  EXPECT_EQ(job.points.step(), 8u);
  EXPECT_TRUE(is_said());
}

TEST_F(RunRecordsTest, APredictionIsOfItsJobAndForgivesLosses) {
  Job& job = submit();
  job.losses.in_a_row = 2;
  (void)step_.end();
  records_.add_prediction(job, {.run = 99, .microbatch = 4});
  EXPECT_EQ(count_recorded<PredictionCommitted>(), 1u);
  ASSERT_EQ(job.predictions.size(), 1u);
  EXPECT_EQ(job.predictions[0].run, job.number());
  EXPECT_EQ(job.losses.in_a_row, 0u);
}

using AvailabilityTest = Rooms;

TEST_F(AvailabilityTest, SaysWhyAPeerCannotBeHad) {
  const Job& job = submit({.excluded = {"peer-2"}});
  const auto why = [&](const Peer& peer, bool own = false) {
    return availability_.why_not(peer, job, own).value_or("");
  };
  EXPECT_EQ(why(join(1)), "");
  EXPECT_EQ(why(join(2)), "is excluded by the job");
  Peer& leaves = join(3);
  leaves.draining = true;
  EXPECT_EQ(why(leaves), "is leaving");
  Peer& works = join(4);
  works.stages[job.number()] = {};
  EXPECT_EQ(why(works), "works on job 1");
  EXPECT_EQ(why(works, /*own=*/true), "") << "its own may stay";
  works.stages = {{job.number() + 1, {}}};
  EXPECT_EQ(why(works, /*own=*/true), "works on job 2");
  Peer& gone = join(5);
  pool_.disconnect(gone);
  EXPECT_EQ(why(gone), "is away");
  const auto candidates = availability_.of(job);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_EQ(candidates[0].peer, key(1));
  EXPECT_EQ(availability_.describe_others(job),
            "; peer-2 is excluded by the job; peer-3 is leaving; peer-4 works on job 2; peer-5 is away");
}

// Whoever takes a stage over is told nothing more than what was planned.
TEST_F(AvailabilityTest, APeerThatDoesNotKnowTheOpsOfThePlanTakesNoStage) {
  Job& job = submit();
  Peer& old = join(1);
  old.software = "0.1.0";
  old.device.op_set = dag::kFirstOpSet;
  EXPECT_EQ(availability_.why_not(old, job, false), std::nullopt) << "nothing is known of its graph";
  auto plan = std::make_shared<PlannedRun>();
  plan->op_set = dag::kFirstOpSet + 1;
  job.previous.plan = plan;
  EXPECT_NE(availability_.why_not(old, job, false).value_or("").find("ops"), std::string::npos);
  EXPECT_FALSE(job.suits(old));
  EXPECT_TRUE(job.suits(join(2)));
  job.phase = phase::Loading{.crew = {.plan = plan, .stages = {}, .loaded_bytes = {}, .copied_bytes = {}}};
  job.previous.plan = nullptr;
  EXPECT_FALSE(job.suits(old));
}

TEST_F(AvailabilityTest, AListOfManyIsShort) {
  const Job& job = submit();
  for (uint8_t n = 1; n <= 20; ++n) join(n).draining = true;
  const std::string text = availability_.describe_others(job);
  EXPECT_EQ(std::count(text.begin(), text.end(), ';'), 9) << text;
  EXPECT_NE(text.find("; and 12 more"), std::string::npos) << text;
}

// One trains and one serves, where there is memory left; and the planner sees what is left.
TEST_F(AvailabilityTest, APeerOfTwoStagesMayHaveOneOfEachKind) {
  const Job& job = submit();  // it trains
  const proto::JobNumber other = job.number() + 1;
  const auto why = [&](const Peer& peer, bool own = false) {
    return availability_.why_not(peer, job, own).value_or("");
  };
  Peer& peer = join(1);
  peer.device.memory = {1000};
  peer.device.rates.matmul_flops_per_second = 8e9;
  const StageGiven serves{.serves = true, .memory = StageGiven::Taken{.programs = 600, .copies = 50}};
  peer.stages = {{other, serves}};
  EXPECT_EQ(why(peer), "works on job 2") << "it holds one stage";
  peer.device.stages = 2;
  EXPECT_EQ(why(peer), "");
  const auto candidates = availability_.of(job);
  ASSERT_EQ(candidates.size(), 1u);
  EXPECT_EQ(candidates[0].device.memory, Bytes{350});
  EXPECT_EQ(candidates[0].device.rates.matmul_flops_per_second, 4e9)
      << "whoever is idle is the better choice";

  peer.stages[other].serves = false;
  EXPECT_EQ(why(peer), "works on job 2") << "it trains already";
  peer.stages[other] = {.serves = true};
  EXPECT_EQ(why(peer), "works on job 2") << "it has yet to say what it takes";
  peer.stages[other] = {.serves = true, .memory = StageGiven::Taken{.programs = 900, .copies = 100}};
  EXPECT_EQ(why(peer), "works on job 2") << "nothing is left";

  peer.stages = {{job.number(), {.memory = StageGiven::Taken{.programs = 300}}}, {other, serves}};
  EXPECT_EQ(why(peer), "works on job 1");
  EXPECT_EQ(why(peer, /*own=*/true), "") << "its own may stay";
  EXPECT_EQ(availability_.of(job, /*own=*/true)[0].device.memory, Bytes{350}) << "its own counts as free";
  peer.stages[other + 1] = serves;
  EXPECT_EQ(why(peer, /*own=*/true), "works on job 3") << "two are held, and this would be a third";

  // Copies lie on a host that has its memory apart.
  peer.stages = {{other, serves}};
  peer.device.host_memory = {60};
  EXPECT_EQ(availability_.of(job)[0].device.memory, Bytes{400});
  EXPECT_EQ(availability_.of(job)[0].device.host_memory, Bytes{10});
  peer.device.host_memory = {50};
  EXPECT_EQ(why(peer), "works on job 2");
  peer.device.memory = peer.device.host_memory = {0};  // without a limit
  EXPECT_EQ(availability_.of(job)[0].device.memory, Bytes{0});
}

using AdmissionTest = Rooms;

TEST_F(AdmissionTest, WhoWasAdmittedOnceNeedsNoToken) {
  EXPECT_FALSE(admit(1, Role::Peer, TokenVerdict::Unknown));
  EXPECT_EQ(count_sent<proto::Refusal>(), 1u);
  EXPECT_TRUE(admit(1, Role::Peer));
  EXPECT_TRUE(admit(1, Role::Peer, TokenVerdict::None));
  EXPECT_TRUE(admit(1, Role::PeerBulk, TokenVerdict::None)) << "the same peer's second connection";
  EXPECT_FALSE(admit(1, Role::Submitter, TokenVerdict::None)) << "in another role";
  (void)admission_.revoke({7});
  EXPECT_FALSE(admit(1, Role::Peer, TokenVerdict::None));
}

TEST_F(AdmissionTest, AnAdminMayDoWhatASubmitterMay) {
  EXPECT_TRUE(admit(1, Role::Admin));
  EXPECT_TRUE(admission_.is_admin(key(1)));
  EXPECT_TRUE(admit(1, Role::Submitter, TokenVerdict::None));
  EXPECT_TRUE(admit(2, Role::Submitter));
  EXPECT_FALSE(admission_.is_admin(key(2)));
  EXPECT_FALSE(admit(2, Role::Admin, TokenVerdict::None));
}

TEST_F(AdmissionTest, ClientsAreBoundedInAllAndOfEachKey) {
  clients_.enter(1, key(1), false);
  clients_.enter(2, key(1), false);
  EXPECT_FALSE(admit(1, Role::Submitter)) << "two of one key";
  EXPECT_TRUE(admit(2, Role::Submitter));
  clients_.enter(3, key(2), false);
  EXPECT_FALSE(admit(3, Role::Submitter)) << "three in all";
  EXPECT_TRUE(admit(3, Role::Peer)) << "a peer is no client";
  clients_.leave(ConnectionId{1});
  EXPECT_TRUE(admit(3, Role::Submitter));
}

TEST_F(AdmissionTest, OfATokensKeysThoseThatWereSeenLongestAgoGo) {
  for (const uint8_t who : {1, 2, 3}) EXPECT_TRUE(admit(who, Role::Submitter));
  EXPECT_FALSE(admit(1, Role::Submitter, TokenVerdict::None));
  EXPECT_TRUE(admit(3, Role::Submitter, TokenVerdict::None));
  clients_.enter(2, key(2), false);  // who is there stays
  EXPECT_TRUE(admit(4, Role::Submitter));
  EXPECT_TRUE(admit(2, Role::Submitter, TokenVerdict::None));
  EXPECT_FALSE(admit(3, Role::Submitter, TokenVerdict::None));
}

TEST_F(AdmissionTest, AnotherVersionIsRefusedAndShown) {
  Introduced event{
      .connection = 1, .who = key(1), .hello = hello(Role::Peer), .verdict = TokenVerdict::Valid};
  event.hello.major = proto::kProtocolMajor + 1;
  event.hello.name = "new";
  EXPECT_FALSE(admission_.admit(event));
  ASSERT_NE(pool_.find(key(1)), nullptr);
  EXPECT_TRUE(pool_.find(key(1))->other_version);
  EXPECT_TRUE(step_.peers);
}

using ClientsTest = Rooms;

TEST_F(ClientsTest, NobodyElseSeesAJob) {
  const Job& job = submit();
  clients_.enter(1, key(100), false);
  clients_.enter(2, key(101), false);
  clients_.enter(3, key(102), true);
  const auto is_told = [&](ConnectionId connection) {
    (void)step_.end();
    clients_.on_message({connection, std::make_shared<const proto::Message>(proto::GetJob{job.number()})});
    return count_sent<proto::JobStatus>() == 1;
  };
  EXPECT_TRUE(is_told(1));
  EXPECT_FALSE(is_told(2));
  EXPECT_TRUE(is_told(3)) << "an admin";
  EXPECT_FALSE(is_told(4)) << "it has gone";
}

TEST_F(ClientsTest, WhoLeavesIsToldOnAllItsConnections) {
  clients_.enter(1, key(1), false);
  clients_.enter(2, key(1), false);
  clients_.enter(3, key(2), false);
  (void)step_.end();
  clients_.leave(key(1), "revoked");
  EXPECT_EQ(count_sent<proto::Refusal>(), 2u);
  EXPECT_EQ(clients_.count(), 1u);
  EXPECT_EQ(clients_.count_of(key(2)), 1u);
}

}  // namespace
}  // namespace weft::broker
