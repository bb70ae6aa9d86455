// A run whose replicas make local steps, with seats that play their part: whoever has something to say may be
// next.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "broker/run/run.h"
#include "tests/broker/local_seats.h"

namespace weft::broker::local {

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
    if (const auto* left_out = std::get_if<proto::ReplicasLeftOut>(&message))
      effects = run->on_report(now, seat, *left_out);
    if (const auto* piece = std::get_if<proto::MeanPiece>(&message))
      effects = run->on_report(now, seat, *piece);
    if (!effects) return fail(effects.error());
    hear(std::move(*effects));
    return {};
  }
  // One message of one of them; false: nobody has any.
  bool turn() {
    if (too_late) return false;
    now += std::chrono::milliseconds(10);
    const auto first = static_cast<uint32_t>(rng.below(seats.size()));
    for (uint32_t i = 0; i < seats.size(); ++i) {
      const auto s = static_cast<uint32_t>((first + i) % seats.size());
      if (lost.contains(seats[s].stage().seat.replica)) continue;
      const auto message = seats[s].work(test::least_computed(seats, lost));
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
  // False: the run cannot go on without it.
  bool lose(uint32_t replica) {
    auto effects = run->leave_out(now, replica);
    if (!effects) return false;
    lost.insert(replica);
    hear(std::move(*effects));
    return true;
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
  void on(const WrongMean&) { ADD_FAILURE() << "no mean is looked at"; }
  void on(const TooLateToLeaveOut& e) { too_late = e.stage; }
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
  std::optional<uint32_t> too_late;
  std::set<uint32_t> lost;
};

inline LocalShape random_shape(Rng& rng) {
  LocalShape shape{.replicas = static_cast<uint32_t>(1 + rng.below(4)),
                   .stages = static_cast<uint32_t>(1 + rng.below(2)),
                   .every = 1 + rng.below(14)};  // also more than are granted ahead
  shape.begun_after = rng.below(3) == 0 ? 1 + rng.below(9) : 0;
  shape.steps = shape.begun_after + 1 + rng.below(60);
  if (rng.below(2) == 0) shape.evaluate_every = 1 + rng.below(12);
  if (rng.below(2) == 0) shape.checkpoint_steps = 1 + rng.below(12);
  if (rng.below(3) == 0) shape.clip_norm = 1;
  if (rng.below(2) == 0) {
    for (uint32_t r = 0; r < shape.replicas; ++r)
      shape.shares.push_back(std::max((shape.every + 7) / 8, 1 + rng.below(shape.every)));
    shape.shares[rng.below(shape.replicas)] = shape.every;
  }
  return shape;
}

inline std::string text_of(const LocalShape& shape) {
  return std::to_string(shape.replicas) + " replicas of " + std::to_string(shape.stages) + " stages, every " +
         std::to_string(shape.every) + " of " + std::to_string(shape.begun_after) + " to " +
         std::to_string(shape.steps) + (shape.shares.empty() ? "" : ", by shares");
}

}  // namespace weft::broker::local
