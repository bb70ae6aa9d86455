// Runs whose replicas make local steps: what is granted, committed, copied and evaluated when, and what is
// said of it.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "broker/run/run.h"
#include "tests/broker/local_seats.h"

namespace weft::broker {
namespace {

using proto::Command;
using proto::CommandKind;
using proto::JobEventKind;
using test::Dealt;
using test::LocalSeat;
using test::LocalShape;

using StepList = std::vector<uint64_t>;

// A run and its seats: whoever has something to say may be next.
class LocalRun {
 public:
  explicit LocalRun(const LocalShape& of, RunBegin begin = {}, RunOptions options = {}, uint64_t seed = 1)
      : shape(of), dealt(test::deal(of)), plan(test::local_plan(of)), rng(seed, 3) {
    begin.after_step = std::max(begin.after_step, of.begun_after);
    begin.checkpointed = std::max(begin.checkpointed, of.begun_after);
    run.emplace(1, 1, plan, begin, options);
    for (const PlannedStage& stage : plan->stages)
      seats.emplace_back(of, std::make_shared<const proto::AssignStage>(*stage.assignment));
  }
  void hear(RunEffects effects) {
    for (RunEffect& effect : effects) std::visit([this](auto& e) { on(e); }, effect);
    const Status checked = run->check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
  }
  Status say(uint32_t seat, const proto::Message& message) {
    Result<RunEffects> effects = fail(ErrorCode::Internal, "not a report");
    if (const auto* step = std::get_if<proto::StepReport>(&message))
      effects = run->on_report(now, seat, *step);
    if (const auto* copy = std::get_if<proto::CheckpointReport>(&message))
      effects = run->on_report(now, seat, *copy, 0);
    if (const auto* evaluation = std::get_if<proto::EvaluationReport>(&message))
      effects = run->on_report(now, seat, *evaluation);
    if (!effects) return fail(effects.error());
    hear(std::move(*effects));
    return {};
  }
  // One message of one of them; false: nobody has any.
  bool turn() {
    now += std::chrono::milliseconds(10);
    const auto first = static_cast<uint32_t>(rng.below(seats.size()));
    for (uint32_t i = 0; i < seats.size(); ++i) {
      const auto s = static_cast<uint32_t>((first + i) % seats.size());
      const auto message = seats[s].work(test::least_computed(seats));
      if (!message) continue;
      const Status said = say(s, *message);
      EXPECT_TRUE(said.has_value()) << said.error().message;
      return said.has_value();
    }
    return false;
  }
  // What the seat says of that inner step, and nothing else.
  void report(uint32_t seat, uint64_t step) {
    LocalSeat copy(shape, std::make_shared<const proto::AssignStage>(seats[seat].stage()));
    for (const Command& command : script) copy.hear(command);
    for (;;) {
      const auto message = copy.work(~uint64_t{0});
      ASSERT_TRUE(message.has_value());
      const auto* of = std::get_if<proto::StepReport>(&*message);
      if (of == nullptr || of->step != step) continue;
      const Status said = say(seat, *message);
      ASSERT_TRUE(said.has_value()) << said.error().message;
      return;
    }
  }
  void report_all(uint64_t until) {
    for (uint64_t step = 1; step <= until; ++step)
      for (uint32_t seat = 0; seat < seats.size(); ++seat) report(seat, step);
  }
  // Until nobody has anything to say: those that computed their part may let the others go on.
  void play() {
    for (int idle = 0; idle < 3 && !testing::Test::HasFailure();) idle = turn() ? 0 : idle + 1;
  }

  void on(const IssueCommand& e) {
    script.push_back(e.command);
    for (LocalSeat& seat : seats) seat.hear(e.command);
  }
  void on(const TellStage& e) {
    told.emplace_back(e.stage, std::get<proto::GradientNorm>(e.message));
    seats[e.stage].hear(e.message);
  }
  void on(const SayEvent& e) { events.push_back(e.event); }
  void on(const RepeatedStep& e) { repeated.push_back(e.step); }
  void on(const WholeSnapshot& e) { snapshots.push_back(e); }
  void on(const Divergence& e) { diverged = e; }
  void on(const Disagreement& e) { disagreed = e; }
  void on(const Finished& e) { finished = e.step; }
  void on(const Stopped& e) { stopped = e.step; }
  void on(const auto&) { ADD_FAILURE() << "nobody compares, predicts, fetches or fails"; }

  StepList steps_of(JobEventKind kind) const {
    StepList steps;
    for (const proto::JobEvent& event : events)
      if (event.kind == kind) steps.push_back(event.step);
    return steps;
  }

  LocalShape shape;
  std::map<uint64_t, Dealt> dealt;
  std::shared_ptr<PlannedRun> plan;
  std::optional<Run> run;
  std::vector<LocalSeat> seats;
  Rng rng;
  Instant now = Instant{} + std::chrono::hours(1);
  std::vector<Command> script;
  std::vector<std::pair<uint32_t, proto::GradientNorm>> told;
  std::vector<proto::JobEvent> events;
  StepList repeated;
  std::vector<WholeSnapshot> snapshots;
  std::optional<Divergence> diverged;
  std::optional<Disagreement> disagreed;
  std::optional<uint64_t> finished, stopped;
};

LocalShape random_shape(Rng& rng) {
  LocalShape shape{.replicas = static_cast<uint32_t>(1 + rng.below(4)),
                   .stages = static_cast<uint32_t>(1 + rng.below(2)),
                   .every = 1 + rng.below(14)};  // also more than are granted ahead
  shape.begun_after = rng.below(3) == 0 ? 1 + rng.below(9) : 0;
  shape.steps = shape.begun_after + 1 + rng.below(60);
  if (rng.below(2) == 0) shape.evaluate_every = 1 + rng.below(12);
  if (rng.below(2) == 0) shape.checkpoint_steps = 1 + rng.below(12);
  if (rng.below(3) == 0) shape.clip_norm = 1;
  return shape;
}

std::string text_of(const LocalShape& shape) {
  return std::to_string(shape.replicas) + " replicas of " + std::to_string(shape.stages) + " stages, every " +
         std::to_string(shape.every) + " of " + std::to_string(shape.begun_after) + " to " +
         std::to_string(shape.steps);
}

TEST(InnerSteps, AreWhatIsDealt) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Rng rng(seed, 1);
    const LocalShape shape = random_shape(rng);
    SCOPED_TRACE("seed " + std::to_string(seed) + ": " + text_of(shape));
    const auto dealt = test::deal(shape);
    const InnerSteps inner(*test::local_plan(shape));
    ASSERT_EQ(dealt.rbegin()->first, last_inner_step(*test::local_plan(shape)->local_steps));
    EXPECT_EQ(inner.in_all(), shape.steps);
    EXPECT_EQ(inner.made(shape.begun_after), shape.begun_after);
    EXPECT_TRUE(inner.is_whole(shape.begun_after));
    std::vector<uint64_t> idle(shape.replicas, 0);
    const uint64_t every = 1 + rng.below(9);
    for (const auto& [step, at] : dealt) {
      SCOPED_TRACE("inner step " + std::to_string(step));
      EXPECT_EQ(inner.made(step), at.made);
      for (uint32_t r = 0; r < shape.replicas; ++r) {
        const auto own = inner.own(r, step);
        ASSERT_EQ(own.has_value(), at.steps[r].has_value());
        idle[r] += !own.has_value();
        if (own) {
          EXPECT_EQ(own->step, *at.steps[r]);
          EXPECT_EQ(own->scheduled, *at.scheduled[r]);
        }
        EXPECT_EQ(inner.idle(r, step), idle[r]);
      }
      EXPECT_EQ(inner.is_whole(step), at.agrees);
      auto next = dealt.find(step);
      while (!next->second.agrees) ++next;
      EXPECT_EQ(inner.next_whole(step), next->first);
      EXPECT_EQ(inner.is_due(every, step), at.agrees && at.made / every > at.made_before_round / every);
    }
    EXPECT_FALSE(inner.own(0, dealt.rbegin()->first + 1).has_value());
    EXPECT_EQ(inner.made(dealt.rbegin()->first + 7), shape.steps) << "nothing comes after the last";
  }
}

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

// ---- what is not believed

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
}  // namespace weft::broker
