// Runs whose replicas make local steps: what is granted, committed, copied and evaluated when, and what is
// said of it.
#include "tests/broker/local_run.h"

namespace weft::broker::local {
namespace {

// Where replicas have agreed something else may be done, and nowhere else.
void expect_borders(const LocalRun& run) {
  uint64_t granted = run.shape.begun_after;
  for (const Command& command : run.script) {
    if (command.kind == CommandKind::Advance) {
      EXPECT_GT(command.step, granted);
      granted = command.step;
      continue;
    }
    EXPECT_EQ(command.step, granted);
    EXPECT_NE(command.kind, CommandKind::Compare);
    EXPECT_TRUE(command.step == run.shape.begun_after || run.dealt.at(command.step).agrees)
        << "after inner step " << command.step;
  }
}

void expect_events(const LocalRun& run) {
  auto at = run.dealt.begin();
  for (const proto::JobEvent& event : run.events) {
    if (event.kind != JobEventKind::Step) continue;
    ASSERT_NE(at, run.dealt.end());
    double sum = 0, count = 0;
    for (const auto& step : at->second.steps)
      if (step) sum += static_cast<double>(*step) + 0.5, ++count;
    EXPECT_EQ(event.step, at->second.made);
    EXPECT_EQ(event.samples, at->second.made * test::kLocalBatch);
    EXPECT_DOUBLE_EQ(event.loss, sum / count);
    EXPECT_EQ(event.learning_rate, dag::scheduled_learning_rate(run.plan->training.schedule,
                                                                run.plan->training.optimizer.learning_rate,
                                                                *at->second.scheduled[0], run.shape.steps));
    ++at;
  }
  EXPECT_EQ(at, run.dealt.end());
}

// As `weft local`: at the first agreement at or after the step that asks for it, and at the end.
StepList expected_at(const LocalRun& run, uint64_t every) {
  StepList steps;
  for (const auto& [inner, at] : run.dealt)
    if (at.agrees &&
        (at.made == run.shape.steps || (every != 0 && at.made / every > at.made_before_round / every)))
      steps.push_back(at.made);
  return steps;
}

void expect_whole(const LocalRun& run, const CheckpointCommitted& point) {
  ASSERT_TRUE(point.local.has_value());
  EXPECT_EQ(point.made(), run.dealt.at(point.step).made);
  std::set<dag::StateKey> wanted, held;
  for (const PlannedStage& stage : run.plan->stages)
    for (const auto& key :
         test::keys_of(stage.assignment->seat, test::owner_of_stage(run.shape, stage.assignment->seat.stage)))
      wanted.insert(key);
  for (const auto& tensor : point.tensors) {
    EXPECT_TRUE(held.insert(tensor.key).second) << to_string(tensor.key) << " twice";
    EXPECT_EQ(tensor.sha256, test::local_digest(tensor.key, point.step));
  }
  EXPECT_EQ(held, wanted);
  ASSERT_EQ(point.local->skipped_steps.size(), run.shape.replicas);
  for (uint32_t r = 0; r < run.shape.replicas; ++r) {
    uint64_t idle = 0;
    for (const auto& [inner, at] : run.dealt) idle += inner <= point.step && !at.steps[r];
    EXPECT_EQ(point.skipped_by(r), idle);
  }
}

TEST(LocalRun, GoesFromAgreementToAgreementToItsEnd) {
  for (uint64_t seed = 0; seed < 300 && !testing::Test::HasFailure(); ++seed) {
    Rng rng(seed, 1);
    const LocalShape shape = random_shape(rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(shape));
    LocalRun run(shape, {}, {.copies_state = rng.below(2) == 0}, seed);
    run.hear(run.run->start(run.now));
    run.play();
    ASSERT_EQ(run.finished, shape.steps);
    expect_borders(run);
    expect_events(run);
    EXPECT_EQ(run.steps_of(JobEventKind::Evaluation),
              shape.evaluate_every != 0 ? expected_at(run, shape.evaluate_every) : StepList{});
    EXPECT_EQ(run.steps_of(JobEventKind::Checkpoint), expected_at(run, shape.checkpoint_steps.value_or(0)));
    ASSERT_FALSE(run.snapshots.empty());
    for (const WholeSnapshot& whole : run.snapshots) expect_whole(run, whole.snapshot);
    EXPECT_TRUE(run.snapshots.back().is_durable);
    EXPECT_EQ(run.events.back().kind, JobEventKind::Result);
    EXPECT_EQ(run.events.back().step, shape.steps);
  }
}

TEST(LocalRun, AStopTakesEffectWhenReplicasHaveAgreed) {
  LocalRun run({.every = 20, .steps = 200});  // more than are granted ahead
  run.hear(run.run->start(run.now));
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(run.turn());
  EXPECT_LT(run.run->granted_step(), 20u);
  run.hear(run.run->request_stop(run.now, /*to_go_on=*/false));
  EXPECT_EQ(run.run->granted_step(), 20u);
  run.play();
  EXPECT_EQ(run.stopped, 40u) << "steps of the run";
  EXPECT_EQ(run.steps_of(JobEventKind::Checkpoint), StepList{40});
  expect_borders(run);
}

TEST(LocalRun, MovesWithAnySnapshotOfAnAgreement) {
  LocalRun run({.stages = 2, .every = 3, .steps = 30});
  run.hear(run.run->start(run.now));
  for (int i = 0; i < 21; ++i) run.turn();
  run.hear(run.run->request_stop(run.now, /*to_go_on=*/true));
  run.play();
  ASSERT_TRUE(run.stopped.has_value());
  EXPECT_EQ(*run.stopped % 6, 0u);
  EXPECT_EQ(run.snapshots.back().snapshot.made(), *run.stopped);
  expect_borders(run);
}

TEST(LocalRun, WhatTheEventLogHasIsDoneAgainAndNotSaid) {
  const LocalShape shape{.every = 3, .steps = 24};
  LocalRun run(shape);
  // It goes on from the agreement after 6 steps of the run, and 10 were said.
  CheckpointCommitted saved{.job = 1, .step = 3};
  saved.local = proto::LocalPoint{.steps = 6, .skipped_steps = {0, 0}};
  run.plan = test::local_plan(shape, &saved);
  run.seats.clear();
  for (const PlannedStage& stage : run.plan->stages)
    run.seats.emplace_back(shape, std::make_shared<const proto::AssignStage>(*stage.assignment));
  run.run.emplace(1, 1, run.plan, RunBegin{.after_step = 3, .checkpointed = 3, .recorded = 10}, RunOptions{});
  run.hear(run.run->start(run.now));
  run.play();
  EXPECT_EQ(run.finished, 24u);
  EXPECT_EQ(run.repeated, (StepList{8, 10}));
  EXPECT_EQ(run.steps_of(JobEventKind::Step), (StepList{12, 14, 16, 18, 20, 22, 24}));
}

TEST(LocalRun, GoesOnWithItsScriptAfterARestart) {
  for (uint64_t seed = 0; seed < 100 && !testing::Test::HasFailure(); ++seed) {
    Rng rng(seed, 2);
    LocalShape shape = random_shape(rng);
    shape.begun_after = 0;
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(shape));
    LocalRun run(shape, {}, {}, seed);
    run.hear(run.run->start(run.now));
    for (uint64_t i = rng.below(200); i > 0 && !run.finished; --i) run.turn();
    if (run.finished) continue;
    // What was recorded: the script from where it was settled last, events and checkpoints.
    RunBegin begin;
    for (const uint64_t step : run.steps_of(JobEventKind::Step)) begin.recorded = step;
    for (const uint64_t step : run.steps_of(JobEventKind::Evaluation)) begin.evaluated = step;
    for (const WholeSnapshot& whole : run.snapshots)
      if (whole.is_durable) begin.checkpointed = whole.snapshot.step;
    std::vector<Command> left;
    for (const Command& command : run.script)
      if (command.sequence > run.script.back().settled) left.push_back(command);
    run.run.emplace(1, 1, run.plan, begin, RunOptions{});
    run.run->resume(left);
    for (uint32_t s = 0; s < run.seats.size(); ++s) {
      auto resumed = run.run->on_resumed(run.now, s, run.seats[s].last_sequence());
      ASSERT_TRUE(resumed.has_value()) << resumed.error().message;
      run.hear(std::move(*resumed));
      for (const proto::Message& message : run.seats[s].said()) {
        const Status said = run.say(s, message);
        ASSERT_TRUE(said.has_value()) << said.error().message;
      }
    }
    run.play();
    ASSERT_EQ(run.finished, shape.steps);
    expect_borders(run);
    expect_events(run);
  }
}

// ---- what is done with a gradient

TEST(LocalRun, EachReplicaDecidesForItself) {
  // Replica 1 makes 4, 5, 6 in the first round; the second of them is not finite.
  LocalRun run({.stages = 2, .every = 3, .steps = 6, .on_divergence = dag::OnDivergence::Skip, .bad = {5}});
  run.hear(run.run->start(run.now));
  run.play();
  ASSERT_EQ(run.finished, 6u);
  int skips = 0;
  for (const auto& [seat, norm] : run.told) {
    const uint32_t replica = run.plan->stages[seat].assignment->seat.replica;
    EXPECT_EQ(norm.skip, replica == 1 && norm.step == 2);
    if (!norm.skip) {
      EXPECT_EQ(norm.norm, std::sqrt(2.0 * (1 + replica)) / 2);
    }
    skips += norm.skip;
  }
  EXPECT_EQ(run.told.size(), 3u * 4);
  EXPECT_EQ(skips, 2);
  std::vector<proto::JobEvent> steps;
  for (const auto& event : run.events)
    if (event.kind == JobEventKind::Step) steps.push_back(event);
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].loss, (1.5 + 4.5) / 2);
  EXPECT_EQ(steps[1].loss, 2.5) << "of the one that learnt from it";
  EXPECT_FALSE(steps[1].skipped);
  const CheckpointCommitted& last = run.snapshots.back().snapshot;
  EXPECT_EQ(last.local->skipped_steps, (std::vector<uint64_t>{0, 1}));
  EXPECT_EQ(last.skipped_by(1), 1u);
}

TEST(LocalRun, WhereAllSkipAStepItIsSkipped) {
  LocalRun run({.every = 2, .steps = 4, .empty_steps = {1, 3}});
  run.hear(run.run->start(run.now));
  run.play();
  ASSERT_EQ(run.finished, 4u);
  ASSERT_GE(run.events.size(), 2u);
  EXPECT_TRUE(run.events[0].skipped && std::isnan(run.events[0].loss));
  EXPECT_FALSE(run.events[1].skipped);
  EXPECT_EQ(run.snapshots.back().snapshot.local->skipped_steps, (std::vector<uint64_t>{1, 1}));
}

TEST(LocalRun, ADivergenceNamesTheReplicaAndItsStep) {
  LocalRun run({.stages = 2, .every = 3, .steps = 12, .bad = {5}});
  run.hear(run.run->start(run.now));
  for (int i = 0; i < 100 && !run.diverged; ++i) run.turn();
  ASSERT_TRUE(run.diverged.has_value());
  EXPECT_EQ(run.diverged->step, 2u) << "the inner one";
  EXPECT_NE(run.diverged->what.find("replica 2, step 5: "), std::string::npos) << run.diverged->what;
}

}  // namespace
}  // namespace weft::broker::local
