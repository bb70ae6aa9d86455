// What a training step has come to so far on one stage, and what the broker is told of it. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/units.h"
#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

class StepTally {
 public:
  explicit StepTally(const proto::AssignStage& assignment)
      : run_(assignment.run), plan_version_(assignment.plan_version) {}

  // What was computed and waited for before, in a snapshot or an evaluation, is no part of the step.
  void begin(Instant now);
  bool has_begun() const { return began_ != Instant{}; }
  // The next step begins with begin(): something else came in between.
  void interrupt() { began_ = Instant{}; }

  void add_busy(Duration busy) { busy_ += busy; }
  void add_losses(const std::vector<double>& losses);
  void add_sample_position(uint64_t position) { sample_positions_.push_back(position); }
  // Nothing is computed, because what comes next lacks something; something else is, meanwhile; it is there:
  // the seat whose tensor was the last that it lacked, nothing where that was another thing.
  void begin_wait(Instant now);
  void pause_wait(Instant now);
  void end_wait(Instant now, const std::optional<plan::Seat>& seat);

  // Before the update, where all stages decide about it together.
  proto::StepReport squares_report(uint64_t step, const TaskOutcome& squares);
  // After it, `owed` as the report has it. The next step has begun.
  proto::StepReport finish(uint64_t step, const TaskOutcome& update, std::vector<Digest> owed, Instant now);

 private:
  proto::JobNumber run_;
  proto::PlanVersion plan_version_;
  Instant began_{};
  Duration busy_{};
  std::map<plan::Seat, Duration> waited_;  // by the seat whose tensor ended the wait
  std::optional<Instant> waits_since_;
  Duration waiting_{};  // before that, for the same
  std::vector<double> losses_;
  std::vector<uint64_t> sample_positions_;
  bool squares_told_ = false;
};

}  // namespace weft::peer
