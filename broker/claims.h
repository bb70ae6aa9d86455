// What a stage's reports may say, read off its assignment: a stage is a stranger's machine, and what it says
// of its work is believed only where it is what was asked for. Whether the numbers are right is not judged
// here.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>

#include "base/result.h"
#include "proto/messages.h"

namespace weft::broker {

// Errors of every function: InvalidArgument, naming what is wrong.
class StageClaims {
 public:
  explicit StageClaims(const proto::AssignStage& assignment);

  // Each tensor that the stage trains, once, of its type and shape, and no other.
  Status check(const proto::CheckpointReport& report) const;
  // Losses from the stage that has the loss alone, one for each microbatch of the step; no sum of squares
  // below zero. What is not finite is not refused: it is a run that diverges.
  Status check_losses(const proto::StepReport& report, uint32_t microbatches) const;
  // Of each microbatch as many numbers as the stage's outputs of that kind have, and counts that are counts.
  Status check(const proto::EvaluationReport& report) const;
  Status check(const proto::ComparisonReport& report) const;
  // Each output that the stage predicts, once; from a stage that predicts something.
  Status check(const proto::PredictionReport& report) const;

 private:
  struct Numbers {
    size_t loss = 0, correct = 0, counted = 0;  // elements of a program's outputs of that role: one a term
  };
  bool skips_steps_ = false;
  std::map<dag::StateKey, dag::TensorSpec> state_;
  std::map<std::string, dag::TensorSpec> predictions_;
  Numbers training_, evaluation_;
};

}  // namespace weft::broker
