// How often a run copies its state: as often as its links carry a copy, which is measured, and no step slower
// for it. With small stages every step has a copy and is committed only with it (eager); else there is one
// every n steps, where n steps take as long as one upload. Replicas with local steps have a state to copy
// only after they have agreed. Pure: time is handed in.
#pragma once

#include <cstdint>
#include <optional>

#include "base/units.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "broker/run/run_options.h"

namespace weft::broker {

class CopyPace {
 public:
  CopyPace(const PlannedRun& plan, const RunOptions& options);

  // What a step takes: as measured, before that as predicted. Above zero.
  double step_seconds() const;
  // Commits do not wait for the copy of a step that was granted later.
  bool is_eager() const;
  // Of copies that are no checkpoints, in steps; 0: there are none.
  uint64_t steps_between() const;
  // How many may be under way when another one is written; nothing: any number.
  std::optional<size_t> under_way_max() const;
  // Whether replicas keep it themselves. Those with local steps, where one of the whole state takes longer
  // than a minute and two rounds, which a loss would cost all of them; what one alone has is lost with it.
  // Those that add each step's gradients have the same state, unless they share slots: where there is not one
  // after each step anyway.
  bool stays_with_replicas() const;
  // What all stages took to make one that stays with them: how often it may be made.
  void on_kept(Duration took);
  uint64_t steps_between_kept() const;
  // Whoever has not fetched a copy by then does not fetch it any more.
  Duration fetch_max() const;

  // A step was done by all stages, `took` seconds after it could begin (0: not known).
  void on_step(double took);
  // Then: how many copies of steps that are done are under way.
  void on_step_copied(Instant now, size_t copies_waiting);
  // A copy is whole, or would be but for a failure.
  struct Upload {
    Instant ready_at{};  // every stage had done its step; Instant{}: not known
    bool gates = false;  // its step was committed only with it
    bool is_durable = false;
    bool failed = false;
  };
  void on_upload(const Upload& upload, Instant now);

  // Its invariants. Internal: which one does not hold.
  Status check() const;

 private:
  // How many steps an upload takes, at least one.
  double interval() const;

  InnerSteps inner_;
  bool have_the_same_;  // several replicas, each of which has the whole state
  RunOptions options_;
  dag::CheckpointSpec checkpoint_;
  int64_t largest_bytes_;      // of a stage's state
  double copy_seconds_;        // of the stage whose state takes longest at its rate
  double predicted_step_;      // seconds
  double step_seconds_ = 0;    // measured, smoothed; 0: not yet
  double upload_seconds_ = 0;  // what the slowest upload takes; the same
  double kept_seconds_ = 0;    // what one takes that stays with the stages; the same
  Instant last_upload_{};
  std::optional<Instant> eager_again_at_{};
  bool is_held_up_ = false;  // by copies that seem short, until then
  struct Watched {           // the last steps
    Instant since{};
    uint64_t steps = 0, waited = 0;  // after which copies stood in line
  } watched_{};
  std::optional<double> eager_seconds_{};  // of a window of steps that were, while it is tried without
  bool is_settling_ = false;
  Instant compare_again_at_{};
};

}  // namespace weft::broker
