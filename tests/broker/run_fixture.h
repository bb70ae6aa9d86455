// A run by hand-moved time: what it is told, and what it asked for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "broker/run/run.h"
#include "tests/broker/run_shape.h"

namespace weft::broker {

using proto::Command;
using proto::CommandKind;

using test::plan_of;
using test::Shape;

class RunFixture final {
 public:
  explicit RunFixture(const Shape& shape, RunBegin begin = {})
      : shape_(shape), run(1, 1, plan_of(shape), std::move(begin), {}) {}

  // What came of something that the run was told.
  void hear(RunEffects effects) {
    for (RunEffect& effect : effects) std::visit([this](auto& e) { on(e); }, effect);
    const Status checked = run.check();
    EXPECT_TRUE(checked.has_value()) << checked.error().message;
  }
  Status hear(Result<RunEffects> effects) {
    if (!effects) return fail(effects.error());
    hear(std::move(*effects));
    return {};
  }

  void on(const IssueCommand& e) {
    script.push_back(e.command);
    for (uint32_t s = 0; s < shape_.stages; ++s) sent[s].push_back(e.command);
  }
  void on(const TellStage& e) { sent[e.stage].push_back(e.message); }
  void on(const SayEvent& e) {
    if (e.event.kind != proto::JobEventKind::Step) return;
    steps.push_back(e.event.step);
    if (e.event.skipped) skipped.push_back(e.event.step);
    EXPECT_EQ(e.event.skipped, std::isnan(e.event.loss));
  }
  void on(const RepeatedStep& e) { repeated.push_back(e.step); }
  void on(const WholeSnapshot& e) {
    (e.is_durable ? checkpoints : rounds).push_back(e.snapshot.step);
    skipped_of[e.snapshot.step] = e.snapshot.skipped_steps;
    if (e.is_direct) direct_rounds.push_back(e.snapshot.step);
  }
  void on(const DirectCopyChanged&) { ++direct_changes; }
  void on(const DirectCopiesFailed& e) { direct_failure = e.why; }
  void on(const UploadFailed&) { ++failures; }
  void on(const TakenPrediction&) {}
  void on(const Compared& e) {
    compared_with.push_back(e.comparison);
    hear(run.go_on(now));
  }
  void on(const Divergence& e) { diverged_by = e; }
  void on(const Disagreement& e) { disagreed_on = e; }
  void on(const WrongMean&) { ADD_FAILURE() << "no mean is looked at"; }
  void on(const TooLateToLeaveOut&) { ADD_FAILURE() << "nobody is left out"; }
  void on(const Finished&) { is_finished = true; }
  void on(const Stopped& e) { stopped_after = e.step; }

  proto::StepReport report_of(uint64_t step, bool updated = true) const {
    proto::StepReport report{.run = 1, .plan_version = 1, .step = step};
    report.squares = {4.0};
    report.losses.assign(shape_.exact_replicas > 1 ? 1 : 2, 1.0);
    report.updated = updated;
    return report;
  }
  // All stages, `took` after the one before.
  void step(uint64_t number, double took) {
    now += std::chrono::duration_cast<Duration>(std::chrono::duration<double>(took));
    for (uint32_t s = 0; s < shape_.stages; ++s) {
      const Status status = hear(run.on_report(now, s, report_of(number)));
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
  }
  // And its copy, if there is to be one.
  void step_and_copy(uint64_t number, double took) {
    step(number, took);
    for (const CommandKind kind : {CommandKind::CopyState, CommandKind::Checkpoint}) {
      const auto copies = written(kind);
      if (std::find(copies.begin(), copies.end(), number) != copies.end()) return snapshot(number);
    }
  }
  // `odd`: a stage that holds other bytes than the others.
  void snapshot(uint64_t number, bool fails = false, std::optional<uint32_t> odd = {}) {
    const bool stays = std::any_of(script.begin(), script.end(), [&](const Command& command) {
      return command.step == number && command.stays;
    });
    for (uint32_t s = 0; s < shape_.stages && !disagreed_on; ++s) {
      if (s > 0 && shape_.exact_replicas > 1 && !stays) continue;
      proto::CheckpointReport report;
      report.run = report.plan_version = 1;
      report.step = number;
      report.tensors = copy_of(shape_, s);
      if (s == odd) report.tensors.front().sha256.bytes[0] = 1;
      if (fails && s == 0) report.failure = Error{ErrorCode::ResourceExhausted, "full"};
      const Status status = hear(run.on_report(now, s, report, 0));
      EXPECT_TRUE(status.has_value()) << status.error().message;
    }
  }
  std::vector<uint64_t> written(CommandKind kind) const {
    std::vector<uint64_t> steps_of;
    for (const Command& command : script)
      if (command.kind == kind) steps_of.push_back(command.step);
    return steps_of;
  }

  Shape shape_;
  Run run;
  Instant now = Instant{} + std::chrono::hours(1);
  std::vector<Command> script;
  std::map<uint32_t, std::vector<proto::Message>> sent;
  std::vector<uint64_t> steps, skipped, repeated, checkpoints, rounds;
  std::map<uint64_t, uint64_t> skipped_of;  // by step of a snapshot that is whole
  std::vector<proto::LinkComparison> compared_with;
  int failures = 0;
  bool is_finished = false;
  std::optional<uint64_t> stopped_after;
  std::optional<Divergence> diverged_by;
  std::optional<Disagreement> disagreed_on;
  int direct_changes = 0;
  std::vector<uint64_t> direct_rounds;
  std::optional<std::string> direct_failure;
};

using StepList = std::vector<uint64_t>;

}  // namespace weft::broker
