// What an evaluation, a prediction or a comparison has come to so far on one stage, and what the broker is
// told of it (what a step comes to: step_tally.h). One of each may be under way. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "peer/machine/task.h"
#include "proto/messages.h"

namespace weft::peer {

class PassTally {
 public:
  explicit PassTally(const proto::AssignStage& assignment)
      : run_(assignment.run), plan_version_(assignment.plan_version) {}

  // ---- forward passes: evaluations and predictions

  // Of a segment, in the order of microbatches.
  void add_forward(const TaskOutcome& segment);
  // A microbatch is through. So many are, of this pass.
  uint32_t end_microbatch() { return ++microbatches_; }
  // All of the command's are. Nothing where the stage has none of an evaluation's outputs, and for a
  // prediction, whose microbatches are told of one by one.
  std::optional<proto::EvaluationReport> finish_forward(const proto::Command& command);

  // ---- comparisons

  // Of a segment, in the order of passes.
  void add_comparison(const TaskOutcome& segment);
  // A pass is through, with these squares of what gradients then were. Whether it was the last one.
  bool end_pass(const TaskOutcome& squares);
  proto::ComparisonReport finish_comparison(const proto::Command& command);

 private:
  proto::JobNumber run_;
  proto::PlanVersion plan_version_;
  uint32_t microbatches_ = 0;
  proto::EvaluationReport evaluation_;
  proto::ComparisonReport comparison_;
};

}  // namespace weft::peer
