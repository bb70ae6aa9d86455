// What a run writes into its script: grants of steps up to the next border, there the commands that belong to
// it (an evaluation, a snapshot), and the microbatches of forward passes. What stages say of them is not
// heard here: the parts it asks, which are the run's, hear it. Pure.
//
// Bounds: RunOptions::script_max commands that are not settled, and RunOptions::window_steps steps granted
// ahead of the last committed one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/run/inner_steps.h"
#include "broker/run/mean_checks.h"
#include "broker/run/run_compare.h"
#include "broker/run/run_effects.h"
#include "broker/run/run_forward.h"
#include "broker/run/run_options.h"
#include "broker/run/run_rounds.h"
#include "broker/run/run_script.h"
#include "broker/run/run_steps.h"

namespace weft::broker {

// The first step after the last granted one at which something else than the next step happens: an
// evaluation, a snapshot, the end. `next_copy`: as Rounds says. Where replicas make local steps: at which
// something else may happen, as they have agreed.
uint64_t next_border(const PlannedRun& plan, uint64_t granted, std::optional<uint64_t> next_copy);

class Commands {
 public:
  struct Parts {
    Steps& steps;
    Rounds& rounds;
    ForwardPass& forward;
    Comparison& comparison;
    MeanChecks& mean_checks;
    Absence& absence;
  };
  // The parts outlive it.
  Commands(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
           const RunOptions& options, Parts parts);

  // As a broker before this one recorded them; the parts know of them then, too.
  void resume(const std::vector<proto::Command>& recorded);
  const Script& script() const { return script_; }

  // From now on no step is granted and no microbatch of a forward pass is asked for, but for a last snapshot.
  void stop() { stopped_ = true; }
  bool are_stopped() const { return stopped_; }
  // Replicas were told with which step they end, which is no other than they would have.
  const std::optional<uint64_t>& settled() const { return settled_; }
  // Whether each stage has a peer that can fetch its copies from it. Until it is said: no.
  void let_copies_go_direct(bool each_can) { copies_go_direct_ = each_can; }
  bool do_copies_go_direct() const { return copies_go_direct_; }

  // Each adds what is to go out to `out`.

  // REQUIRES: it trains. Steps, as far as they may be granted, and what is due between them.
  void advance(Instant now, RunEffects& out);
  // Of the last step granted.
  void write_checkpoint(Instant now, RunEffects& out) { write_snapshot(now, Rounds::Kind::Checkpoint, out); }
  void write_snapshot_if_due(Instant now, RunEffects& out);
  // What the run must not end without, or with `moving` not go on with other peers.
  void write_last_snapshot(Instant now, bool moving, RunEffects& out);
  // That replica was lost. The others agree without it where they have not agreed yet, and that is the last
  // that they do; then a last snapshot. False: they cannot, and nothing has changed.
  bool leave_out(Instant now, uint32_t replica, RunEffects& out);
  void evaluate_if_due(RunEffects& out);
  // Of the agreements that are over with that step, which has just been committed.
  void check_means(uint64_t step, RunEffects& out);
  void continue_forward(RunEffects& out);

  // Of a run that trains: all of it is made and kept, or, once it was stopped, all that was granted is;
  // `moving`: it is to go on with other peers.
  bool are_complete() const;
  bool have_ended(bool moving) const;

  // Its invariants, and those of its parts. Internal: which one does not hold.
  Status check() const;

 private:
  bool is_settled(const proto::Command& command) const;
  void trim();
  void write(proto::Command command, RunEffects& out);
  void grant(Instant now, uint64_t step, RunEffects& out);
  uint64_t next_whole(uint64_t step) const;
  uint64_t next_agreement() const;
  uint64_t local_border() const;
  bool have_agreed() const;
  void tell_left_out(Instant now, uint64_t step, const replicas::LeftOut& left_out, RunEffects& out);
  void write_snapshot(Instant now, Rounds::Kind kind, RunEffects& out);
  void grant_until_whole(Instant now, uint64_t step, bool may_settle, RunEffects& out);
  void write_comparison_if_due(Instant now, RunEffects& out);

  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  RunOptions options_;
  Parts parts_;
  Script script_;
  bool copies_go_direct_ = false;
  bool stopped_ = false;
  std::optional<uint64_t> settled_{};  // the last step, after which all have the same weights
};

}  // namespace weft::broker
