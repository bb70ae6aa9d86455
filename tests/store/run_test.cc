// A run outlives the broker: its plan, what of its script is not settled, how far it got.
#include <gtest/gtest.h>

#include "broker/store/run_plan.h"
#include "broker/store/sqlite_store.h"
#include "proto/codec/codec.h"
#include "tests/broker/local_seats.h"
#include "tests/broker/run_shape.h"
#include "tests/proto/samples.h"
#include "tests/store/history.h"
#include "tests/store/memory_disk.h"

namespace weft::broker {
namespace {

using proto::Command;
using proto::JobEvent;
using proto::JobEventKind;

JobEvent event(uint64_t sequence, JobEventKind kind, uint64_t step) {
  return {.job = 1, .sequence = sequence, .kind = kind, .step = step};
}
CommandIssued command(uint64_t sequence, uint64_t settled, proto::PlanVersion version = 1) {
  Command made{.run = 1, .plan_version = version, .step = sequence * 10};
  made.sequence = sequence;
  made.settled = settled;
  made.committed = 5;
  made.keep_from = 4;
  return {1, made};
}
RunStarted started(proto::PlanVersion version, uint64_t after_step) {
  return {1, version, test::small_plan(1, version, 3, after_step)};
}

class RunTest : public testing::Test {
 protected:
  RunTest() { append(JobSubmitted{.job = 1}); }

  template <typename... Records>
  void append(Records... records) {
    std::vector<Record> all;
    (all.emplace_back(std::move(records)), ...);
    const Status done = store_->append(all);
    ASSERT_TRUE(done) << done.error().message;
  }
  template <typename... Records>
  ErrorCode refused(Records... records) {
    std::vector<Record> all;
    (all.emplace_back(std::move(records)), ...);
    const Status done = store_->append(all);
    EXPECT_FALSE(done);
    return done ? ErrorCode::Internal : done.error().code;
  }
  StoredJob job() {
    store_.reset();
    store_ = open_sqlite_store("runs.sqlite", {.vfs = disk_.name()}).value();
    auto state = store_->load();
    EXPECT_TRUE(state) << state.error().message;
    return state->jobs.at(1);
  }
  static std::vector<uint64_t> sequences(const StoredJob& job) {
    std::vector<uint64_t> all;
    for (const Command& one : job.script) all.push_back(one.sequence);
    return all;
  }

  test::MemoryDisk disk_{"runs"};
  std::unique_ptr<Store> store_ = open_sqlite_store("runs.sqlite", {.vfs = disk_.name()}).value();
};

TEST_F(RunTest, APlanComesBackAsItWas) {
  append(started(4, 7));
  const StoredJob found = job();
  ASSERT_TRUE(found.run);
  EXPECT_EQ(found.run->job, 1u);
  EXPECT_EQ(found.run->plan_version, 4u);
  const PlannedRun& plan = *found.run->plan;
  const PlannedRun expected = *test::small_plan(1, 4, 3, 7);
  ASSERT_EQ(plan.stages.size(), 3u);
  for (size_t s = 0; s < 3; ++s) {
    EXPECT_EQ(plan.stages[s].peer, expected.stages[s].peer);
    EXPECT_EQ(plan.stages[s].parameters, expected.stages[s].parameters);
    EXPECT_EQ(plan.stages[s].microbatch_seconds, expected.stages[s].microbatch_seconds);
    EXPECT_EQ(proto::encode(*plan.stages[s].assignment), proto::encode(*expected.stages[s].assignment));
  }
  EXPECT_EQ(plan.training.steps, expected.training.steps);
  EXPECT_EQ(plan.training.batch_size, expected.training.batch_size);
  EXPECT_EQ(plan.microbatches, expected.microbatches);
  EXPECT_EQ(plan.parameter_count, expected.parameter_count);
  EXPECT_EQ(plan.training.clip_norm, 1.5);
  EXPECT_EQ(plan.borders.evaluate_every, 4u);
  EXPECT_FALSE(plan.borders.checkpoint.every.has_value());
  EXPECT_EQ(plan.borders.checkpoint.steps, 4u);
  EXPECT_EQ(plan.equal_bits, expected.equal_bits);
  EXPECT_EQ(plan.fingerprint, expected.fingerprint);
  EXPECT_EQ(plan.explanation, expected.explanation);
  EXPECT_EQ(plan.relay_tickets, expected.relay_tickets);
  EXPECT_EQ(plan.data_key, expected.data_key);
  EXPECT_EQ(plan.predicted_step, expected.predicted_step);
}

TEST_F(RunTest, TheStepThatARunWentBackForComesBack) {
  RunStarted again = started(4, 7);
  again.diverged_at = 12;
  append(again);
  EXPECT_EQ(job().run->diverged_at, 12u);
}

TEST_F(RunTest, StagesOfRealModelsComeBackAsTheyWere) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 3);
    const size_t kind = proto::Message(proto::AssignStage{}).index();
    auto plan = std::make_shared<PlannedRun>();
    for (int s = 0; s < 3; ++s) {
      auto stage = std::get<proto::AssignStage>(test::random_message(kind, rng));
      plan->stages.push_back({{}, std::make_shared<const proto::AssignStage>(std::move(stage))});
    }
    append(RunStarted{1, 1, plan});
    const StoredJob found = job();
    ASSERT_TRUE(found.run);
    for (size_t s = 0; s < 3; ++s)
      EXPECT_EQ(proto::encode(*found.run->plan->stages[s].assignment),
                proto::encode(*plan->stages[s].assignment));
    EXPECT_EQ(found.run->plan->training.clip_norm, plan->stages[0].assignment->training.clip_norm);
    EXPECT_EQ(found.run->plan->training.on_divergence, plan->stages[0].assignment->training.on_divergence);
  }
}

TEST_F(RunTest, ReplicasWithLocalStepsComeBack) {
  CheckpointCommitted saved{.job = 1, .step = 3};
  const std::shared_ptr<PlannedRun> plan =
      test::local_plan({.replicas = 2, .stages = 2, .shares = {1, 3}}, &saved);
  append(RunStarted{1, 1, plan});
  const StoredJob found = job();
  const replicas::ReplicaTerms& terms = plan->local_steps->terms;
  EXPECT_EQ(found.chosen, (replicas::ChosenTerms{terms.every, terms.codec, {1, 3}}));
  ASSERT_TRUE(found.run);
  EXPECT_EQ(found.run->plan->local_steps, plan->local_steps);
  EXPECT_EQ(found.run->plan->training.steps, plan->training.steps);
  std::vector<proto::Encoded<proto::AssignStage>> stages;
  for (size_t s = 0; s < 4; ++s) {
    stages.push_back(found.run->plan->stages[s].assignment);
    EXPECT_EQ(proto::encode(*stages[s]), proto::encode(*plan->stages[s].assignment));
  }
  proto::RunPlan other = to_message(*plan);
  EXPECT_NE(from_message(other, stages), nullptr);
  ++other.terms.local_steps->steps;
  EXPECT_EQ(from_message(other, stages), nullptr) << "its stages were told something else";
}

TEST_F(RunTest, ReplicasThatAddGradientsDoItByOneCodec) {
  const std::shared_ptr<const PlannedRun> plan = test::plan_of({.stages = 2, .exact_replicas = 2});
  const auto comes_back = [&](const char* first, const char* second) {
    std::vector<proto::Encoded<proto::AssignStage>> stages;
    for (const char* codec : {first, second}) {
      proto::AssignStage stage = *plan->stages[stages.size()].assignment;
      stage.exact->codec = compress::parse(codec).value();
      stages.emplace_back(std::move(stage));
    }
    return from_message(to_message(*plan), stages) != nullptr;
  };
  EXPECT_TRUE(comes_back("dense", "dense"));
  EXPECT_TRUE(comes_back("int8", "int8"));
  EXPECT_FALSE(comes_back("int8", "dense")) << "its stages were told something else";
}

TEST_F(RunTest, OfTheScriptWhatIsNotSettledStays) {
  append(started(1, 0), command(1, 0), command(2, 0), command(3, 0));
  EXPECT_EQ(sequences(job()), (std::vector<uint64_t>{1, 2, 3}));
  append(command(4, 2));
  const StoredJob found = job();
  EXPECT_EQ(sequences(found), (std::vector<uint64_t>{3, 4}));
  EXPECT_EQ(proto::encode(found.script.back()), proto::encode(command(4, 2).command));
  append(command(5, 4));
  EXPECT_EQ(sequences(job()), (std::vector<uint64_t>{5}));
}

TEST_F(RunTest, ANewPlanTakesThePlaceOfTheOneBefore) {
  append(started(1, 0), command(1, 0), command(2, 0));
  append(started(2, 3), command(1, 0, 2));
  const StoredJob found = job();
  EXPECT_EQ(found.run->plan_version, 2u);
  EXPECT_EQ(found.run->plan->stages.front().assignment->after_step, 3u);
  EXPECT_EQ(sequences(found), (std::vector<uint64_t>{1}));
  EXPECT_EQ(found.script.front().plan_version, 2u);
}

TEST_F(RunTest, NothingIsLeftOfARunThatEnded) {
  append(started(1, 0), command(1, 0), event(1, JobEventKind::Step, 1));
  append(RunEnded{1});
  append(RunEnded{1});
  const StoredJob found = job();
  EXPECT_FALSE(found.run);
  EXPECT_TRUE(found.script.empty());
  EXPECT_EQ(found.committed_step, 1u);
}

TEST_F(RunTest, ProgressIsThatOfTheLastEvents) {
  EXPECT_EQ(job().committed_step, 0u);
  append(started(1, 0));
  append(event(1, JobEventKind::Step, 1), event(2, JobEventKind::Step, 2),
         event(3, JobEventKind::Evaluation, 2), event(4, JobEventKind::Step, 3),
         event(5, JobEventKind::Notice, 50), event(6, JobEventKind::Checkpoint, 60));
  const StoredJob found = job();
  EXPECT_EQ(found.committed_step, 3u);
  EXPECT_EQ(found.evaluated_step, 2u);
}

// The run does these steps again and does not say so: the event log holds each once.
TEST_F(RunTest, APlanThatGoesBackLeavesWhatTheEventsSay) {
  append(started(1, 0), event(1, JobEventKind::Step, 8), event(2, JobEventKind::Evaluation, 8));
  append(started(2, 5));
  EXPECT_EQ(job().committed_step, 8u);
  EXPECT_EQ(job().evaluated_step, 8u);
  append(event(3, JobEventKind::Step, 9));
  EXPECT_EQ(job().committed_step, 9u);
}

TEST_F(RunTest, ACommandOfNoPlanIsRefused) {
  EXPECT_EQ(refused(command(1, 0)), ErrorCode::InvalidArgument);
  append(started(1, 0), command(1, 0));
  EXPECT_EQ(refused(command(2, 0, 9)), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused(event(1, JobEventKind::Step, 1), command(1, 0)), ErrorCode::InvalidArgument) << "twice";
  EXPECT_EQ(refused(RunStarted{1, 1, nullptr}), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused(RunStarted{1, 1, std::make_shared<PlannedRun>()}), ErrorCode::InvalidArgument);
  EXPECT_EQ(refused(RunStarted{2, 1, test::small_plan(2, 1, 1, 0)}), ErrorCode::InvalidArgument) << "no job";
  const StoredJob found = job();
  EXPECT_EQ(sequences(found), (std::vector<uint64_t>{1})) << "the plan before is still there";
  EXPECT_EQ(found.committed_step, 0u);
}

TEST_F(RunTest, AFullDiskRefusesAndLetsItBeTriedAgain) {
  append(started(1, 0), command(1, 0));
  disk_.arm(1, test::Fault::Full);
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(refused(event(1, JobEventKind::Step, 1), command(2, 1)), ErrorCode::ResourceExhausted);
  EXPECT_EQ(store_->load()->jobs.at(1).script.size(), 1u) << "readable all the while";
  disk_.make_room();
  append(event(1, JobEventKind::Step, 1), command(2, 1));
  const StoredJob found = job();
  EXPECT_EQ(sequences(found), (std::vector<uint64_t>{2}));
  EXPECT_EQ(found.committed_step, 1u);
}

}  // namespace
}  // namespace weft::broker
