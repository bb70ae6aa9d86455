// The replicas that a run has lost and goes on without, until the others have agreed: what the lost ones made
// of the round does not count, nor of the one before where that overlaps it, and its samples are given again
// (proto::CommandKind::LeaveOut). Every other stage says whether it has left them out in time; before all
// have, nothing counts that they agree on. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "broker/records.h"
#include "broker/run/claims.h"
#include "broker/run/inner_steps.h"
#include "broker/run/planned_run.h"
#include "proto/messages.h"

namespace weft::broker {

class Absence {
 public:
  explicit Absence(std::shared_ptr<const PlannedRun> plan);

  bool empty() const { return lost_.empty(); }
  const std::vector<uint32_t>& replicas() const { return lost_; }  // ascending
  bool has_replica(uint32_t replica) const;
  bool has(uint32_t stage) const { return has_replica(replica_of(stage)); }

  // Whether somebody is left then.
  bool can_be_without(uint32_t replica) const;
  // What the others are told if that one is lost, too, and they agree after that step, with which a round
  // ends. Nothing: the run cannot go on so. Somebody who is there has to have a link to all others for each
  // mean that the lost ones were to take; and no inner step after it may have a number that was there before.
  std::optional<replicas::LeftOut> without(uint32_t replica, uint64_t step) const;

  // Likewise, if it was lost when all had agreed, and has its part in that.
  replicas::LeftOut after_agreement(uint32_t replica) const;

  // It was lost, and is left out as the command tells the others, which is as one of these said: after the
  // agreement, if the command's step was committed. Or nobody is told, for the run has made no step yet.
  void begin(const proto::Command& command);
  void begin(uint32_t replica, uint64_t step);

  // A stage's answer. InvalidArgument: it was not asked.
  Status on_report(uint32_t stage, const proto::ReplicasLeftOut& report);
  bool awaits(uint32_t stage) const { return is_told() && !has(stage) && !answered_[stage]; }
  bool was_too_late() const { return too_late_; }
  // Somebody has not answered: what is agreed after that step is not certain.
  bool is_open() const;
  bool holds(uint64_t step) const { return is_told() && step >= step_ && is_open(); }
  // To the run's end, so that a broker that is restarted knows of it.
  bool is_settled(uint64_t sequence) const {
    return sequence < (is_told() ? sequence_ : sequence_after_agreement_);
  }
  // A stage that came back says again what it answered.
  void on_resumed(uint32_t stage);

  // What a snapshot after that step is, of those that are there. `followers`, by replica: those that have no
  // part in it; empty: none.
  void complete(CheckpointCommitted& snapshot, const std::vector<bool>& followers) const;
  // The stage as whoever takes the lost ones' means, and keeps what is owed of them; and what the stages of
  // the run then may claim.
  proto::AssignStage taking_over(const proto::AssignStage& assignment) const;
  void take_over(std::vector<StageClaims>& claims) const;
  // Steps of the run that are given again.
  uint64_t steps_lost() const;
  uint64_t step() const { return step_; }

 private:
  uint32_t replica_of(uint32_t stage) const;
  bool is_told() const { return sequence_ != 0; }
  bool are_linked(uint32_t owner, const std::vector<uint32_t>& lost) const;
  replicas::Without made(uint64_t step) const;

  std::shared_ptr<const PlannedRun> plan_;
  InnerSteps inner_;
  std::vector<uint32_t> lost_;  // ascending
  uint64_t step_ = 0;
  uint64_t sequence_ = 0;                  // of the command; 0: nobody was told
  uint64_t sequence_after_agreement_ = 0;  // likewise, of the first one after all had agreed
  replicas::LeftOut left_out_;
  std::vector<bool> answered_;  // by stage
  bool too_late_ = false;
};

}  // namespace weft::broker
