// One run of a job, from the moment its stages are assigned: which commands its stages get, when a step is
// committed, when a snapshot of all stages is whole, when it is finished. Pure: told what came in, it returns
// what is to go out.
//
// Stages carry their commands out strictly in order, so a run is a script (run_script.h). Steps are granted a
// few ahead of the last committed one (run_steps.h), and at a border (evaluation, snapshot, the end) the
// border's commands follow the grant that ends there. No stage can be past a border that was not yet written
// when it was granted. A command becomes durable before it goes to any stage: from what is left of the script
// a run can be resumed (resume()).
//
// Each of its parts is a value that knows nothing of the others: the script, steps, rounds of snapshots
// (run_rounds.h), the forward pass of an evaluation or prediction (run_forward.h), the comparison of links
// (run_compare.h). What is written into the script next is decided over them (run_commands.h); here is what
// follows from what stages report, and when the run is done.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/run/absence.h"
#include "broker/run/claims.h"
#include "broker/run/followers.h"
#include "broker/run/inner_steps.h"
#include "broker/run/lateness.h"
#include "broker/run/mean_checks.h"
#include "broker/run/repeats.h"
#include "broker/run/run_commands.h"
#include "broker/run/run_compare.h"
#include "broker/run/run_effects.h"
#include "broker/run/run_forward.h"
#include "broker/run/run_options.h"
#include "broker/run/run_rounds.h"
#include "broker/run/run_steps.h"
#include "broker/run/stalls.h"

namespace weft::broker {

class Run {
 public:
  Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
      const RunBegin& begin, const RunOptions& options);
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // REQUIRES: every stage is ready. The first commands.
  RunEffects start(Instant now);
  // Instead of start(): the run goes on from what a broker before this one recorded. `script`: its commands
  // that were not settled, in order. No stage is there yet.
  void resume(const std::vector<proto::Command>& script);
  // A stage came back: it gets the commands after `last_sequence`, and the norms of steps under way.
  // InvalidArgument when it cannot have been given just these. What it reports again is dropped.
  Result<RunEffects> on_resumed(Instant now, uint32_t stage, uint64_t last_sequence);
  // Whether a command of that number was given, by this broker or one whose records it has.
  bool has_given(uint64_t sequence) const { return sequence < commands_.script().next_sequence(); }

  // What a stage reports, in its peer's order. InvalidArgument when it cannot be: the peer breaks the
  // protocol, and nothing comes of what it said.
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::StepReport& report);
  // `blobs_missing`: of the report's tensors, how many the broker has not, which a direct copy may.
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                               uint32_t blobs_missing);
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::EvaluationReport& report);
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::PredictionReport& report);
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::ComparisonReport& report);
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::ReplicasLeftOut& report);
  Result<RunEffects> on_report(Instant now, uint32_t stage, const proto::MeanPiece& report);
  // After Compared.
  RunEffects go_on(Instant now);

  // That replica was lost. The others agree without it, and the run stops with a snapshot, to go on with
  // other peers. Of its stages nothing may be told any more. Nothing: it cannot be.
  std::optional<RunEffects> leave_out(Instant now, uint32_t replica);
  const Absence& absence() const { return absence_; }
  Followers& followers() { return followers_; }
  bool is_moving() const { return moving_; }  // it stops, to go on with other peers
  // The replica that holds the others up, as of the last tick; and that none is late in this round any more.
  std::optional<LateReplica> late() const { return lateness_.late(); }
  void pardon_late() { lateness_.pardon(); }

  // Whether each stage has a peer that can fetch its copies from it. Until it is said: no.
  void let_copies_go_direct(bool each_can) { commands_.let_copies_go_direct(each_can); }
  bool do_copies_go_direct() const { return commands_.do_copies_go_direct(); }
  // The same of copies that stay with the stages, because each can give others what its replica has.
  void let_copies_stay(bool each_can) { rounds_.let_stay(each_can); }
  // Somebody has fetched that stage's part of it; nobody is there to fetch what is under way; and nobody can.
  RunEffects on_fetched(Instant now, uint32_t stage, uint64_t step);
  RunEffects drop_direct(Instant now);
  RunEffects give_up_direct(Instant now, const Error& why);
  void on_saving(uint32_t stage, uint64_t step, Bytes saved) { rounds_.on_saving(stage, step, saved); }
  RunEffects on_tick(Instant now);
  // After a checkpoint of the last step granted; or, to go on with other peers, after any snapshot of it.
  RunEffects request_stop(Instant now, bool to_go_on);

  const PlannedRun& plan() const { return *plan_; }
  bool training() const { return steps() != 0; }
  // Then there are no commands, and it ends only when it is asked to stop.
  bool serves() const { return plan_->serves(); }
  // As commands and reports count them: where replicas make local steps, inner steps.
  const InnerSteps& inner() const { return inner_; }
  uint64_t steps() const { return plan_->training.steps; }
  uint64_t committed_step() const { return steps_.committed(); }
  uint64_t sure_step() const { return mean_checks_.right_up_to(committed_step()); }  // of these
  uint64_t granted_step() const { return steps_.granted(); }
  uint64_t evaluated_step() const { return forward_.evaluated(); }  // of the run, as in events
  const std::map<std::string, double>& metrics() const { return forward_.metrics(); }
  const Steps& progress() const { return steps_; }
  const Rounds& rounds() const { return rounds_; }
  // When something last came in that brought the run forward: a step, a part of a snapshot, or the answer
  // to the oldest request of an evaluation or prediction.
  Instant last_progress() const { return last_progress_; }
  MissingReports missing_reports() const;  // what it waits for at the moment
  // What it waits for next is that replicas agree, for which they exchange all of their weights.
  bool waits_for_agreement() const;
  // A microbatch of all stages over dense links is under way, which takes about so long.
  std::optional<Duration> comparing() const { return comparison_.takes(rounds_.pace().step_seconds()); }
  const proto::LinkComparison& compared() const { return comparison_.last(); }
  uint64_t repeats_dropped() const { return repeats_.dropped(); }  // reports of stages that had come back

  // Its invariants, which hold between any two calls. Internal: which one does not.
  Status check() const;

 private:
  // Each adds what is to go out to `out`.
  void continue_run(Instant now, RunEffects& out);
  void commit_steps(Instant now, RunEffects& out);
  void end_if_done(RunEffects& out);
  bool is_gated(uint64_t step) const;
  TellStage tell_norm(uint32_t stage, const Steps::Decision& decision) const {
    return {stage, proto::GradientNorm{job_, version_, decision.step, decision.norm, decision.skip}};
  }
  Result<RunEffects> refuse_unasked(uint32_t stage, uint64_t step, const char* what);

  proto::JobNumber job_;
  proto::PlanVersion version_;
  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  std::vector<StageClaims> claims_;  // by stage
  Steps steps_;
  Absence absence_;
  Followers followers_;
  Lateness lateness_;
  Rounds rounds_;
  ForwardPass forward_;
  Comparison comparison_;
  MeanChecks mean_checks_;
  Commands commands_;  // of those
  bool moving_ = false, ended_ = false;
  Instant last_progress_{};
  Repeats repeats_;
};

}  // namespace weft::broker
