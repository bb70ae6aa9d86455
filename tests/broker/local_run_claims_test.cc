// What seats of replicas that make local steps may say, and what becomes of one that says something else.
#include "tests/broker/local_run.h"

namespace weft::broker::local {
namespace {

// Why the run does not take it; empty: it does.
std::string refusal(LocalRun& run, uint32_t seat, const proto::Message& message) {
  const Status said = run.say(seat, message);
  if (said) return "";
  EXPECT_EQ(said.error().code, ErrorCode::InvalidArgument);
  return said.error().message;
}

TEST(LocalRun, SamplesAreTheReplicasOwn) {
  LocalRun run({.every = 3, .steps = 12});
  run.hear(run.run->start(run.now));
  proto::StepReport report{.run = 1, .plan_version = 1, .step = 1, .losses = {1, 1}, .squares = {1}};
  report.updated = true;
  report.sample_positions = {0, 4};
  EXPECT_NE(refusal(run, 1, report), "") << "those are the first replica's";
  report.sample_positions = {24, 28};
  EXPECT_NE(refusal(run, 0, report), "");
  EXPECT_EQ(refusal(run, 1, report), "");
}

TEST(LocalRun, WhoHasNoStepHasNothingToSayOfIt) {
  // 1 2 | 3 4, then 5 | 6, then 7 | and nothing: of 3 left, the first makes 5 and 6, the second 7.
  LocalRun run({.every = 2, .steps = 7});
  run.hear(run.run->start(run.now));
  run.play();
  ASSERT_EQ(run.finished, 7u);
  EXPECT_EQ(run.steps_of(JobEventKind::Step), (StepList{2, 4, 6, 7}));
  EXPECT_EQ(run.snapshots.back().snapshot.local->skipped_steps, (std::vector<uint64_t>{0, 1}));

  LocalRun lied({.every = 2, .steps = 7});
  lied.hear(lied.run->start(lied.now));
  lied.report_all(3);
  proto::StepReport report{.run = 1, .plan_version = 1, .step = 4};
  EXPECT_NE(refusal(lied, 1, report), "") << "it has not updated, and need not wait";
  report.updated = true;
  proto::StepReport with = report;
  with.losses = {1, 1};
  EXPECT_NE(refusal(lied, 1, with), "");
  with = report;
  with.squares = {1};
  EXPECT_NE(refusal(lied, 1, with), "");
  with = report;
  with.sample_positions = {48, 52};
  EXPECT_NE(refusal(lied, 1, with), "");
  EXPECT_EQ(refusal(lied, 1, report), "");
}

TEST(LocalRun, ASnapshotHasWhatAReplicaKeeps) {
  const auto refused = [](uint32_t seat, const std::function<void(proto::CheckpointReport&)>& change) {
    LocalRun run({.every = 1, .steps = 2});
    run.hear(run.run->start(run.now));
    run.report_all(1);
    proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 1};
    const plan::Seat own = run.plan->stages[seat].assignment->seat;
    for (const auto& key : test::keys_of(own, test::owner_of_stage(run.shape, own.stage)))
      report.tensors.push_back({key, {dag::DType::F32, dag::Shape({4})}, test::local_digest(key, 1)});
    change(report);
    return refusal(run, seat, report);
  };
  EXPECT_EQ(refused(0, [](auto&) {}), "");
  EXPECT_EQ(refused(1, [](auto&) {}), "");
  EXPECT_NE(refused(0, [](auto& report) { report.tensors.pop_back(); }), "") << "its residue";
  EXPECT_NE(refused(1, [](auto& report) { report.tensors.pop_back(); }), "") << "the owner's own";
  EXPECT_NE(refused(0, [](auto& report) { report.tensors[1].key.replica = 1; }), "") << "another's slots";
  EXPECT_NE(refused(1, [](auto& report) { report.tensors[0].key.replica = 1; }), "") << "agreed weights";
  EXPECT_NE(refused(0,
                    [](auto& report) {
                      report.tensors.push_back(report.tensors.back());
                      report.tensors.back().key.slot = dag::StateSlot::ReturnResidue;
                    }),
            "")
      << "the other's";
  EXPECT_NE(refused(0, [](auto& report) { report.skipped_steps = 1; }), "");
  EXPECT_NE(refused(0, [](auto& report) { report.local.emplace(); }), "");
}

TEST(LocalRun, NobodyHasMadeMoreUpdatesThanItsSteps) {
  LocalRun run({.every = 2, .steps = 7});  // the second has no step in the last inner one
  run.hear(run.run->start(run.now));
  run.report_all(4);
  proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 4};
  for (const auto& key : test::keys_of({0, 1}, 1))
    report.tensors.push_back({key, {dag::DType::F32, dag::Shape({4})}, test::local_digest(key, 4)});
  EXPECT_NE(refusal(run, 1, report), "");
  report.skipped_steps = 2;
  EXPECT_NE(refusal(run, 1, report), "");
  report.skipped_steps = 1;
  EXPECT_EQ(refusal(run, 1, report), "");
}

TEST(LocalRun, ReplicasThatHoldDifferentBytesEndTheRun) {
  LocalRun run({.stages = 2, .every = 1, .steps = 2});
  run.hear(run.run->start(run.now));
  run.report_all(1);
  for (const uint32_t seat : {0u, 1u}) {
    proto::CheckpointReport report{.run = 1, .plan_version = 1, .step = 1};
    for (const auto& key : test::keys_of({0, seat}, 1))
      report.tensors.push_back({key, {dag::DType::F32, dag::Shape({4})}, test::local_digest(key, 1 + seat)});
    EXPECT_EQ(refusal(run, seat, report), "");
  }
  ASSERT_TRUE(run.disagreed.has_value());
  EXPECT_EQ(run.disagreed->step, 2u) << "of the run";
  EXPECT_EQ(run.disagreed->stage, 0u);
  EXPECT_EQ(run.disagreed->other, 1u);
  EXPECT_EQ(run.disagreed->tensor, "w0/value");
}

TEST(LocalRun, WhoIsWaitedForIsSoughtInItsReplica) {
  LocalRun run({.stages = 2, .every = 3, .steps = 12});
  run.hear(run.run->start(run.now));
  // Seats: stage 0 of both, stage 1 of both. The second replica says nothing at first.
  for (const uint64_t step : {1, 2, 3})
    for (const uint32_t seat : {0u, 2u}) run.report(seat, step);
  MissingReports missing = run.run->missing_reports();
  EXPECT_EQ(missing.stages, (std::vector<uint32_t>{1, 3}));
  EXPECT_FALSE(missing.is_mutual);
  for (const uint64_t step : {1, 2})
    for (const uint32_t seat : {1u, 3u}) run.report(seat, step);
  missing = run.run->missing_reports();
  EXPECT_EQ(missing.stages, (std::vector<uint32_t>{1, 3}));
  EXPECT_TRUE(missing.is_mutual) << "after it they agree";
}

}  // namespace
}  // namespace weft::broker::local
