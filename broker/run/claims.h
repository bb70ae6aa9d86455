// What a stage's reports may say, read off its assignment: a stage is a stranger's machine, and what it says
// of its work is believed only where it is what was asked for. Whether the numbers are right is not judged
// here.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "broker/run/inner_steps.h"
#include "proto/messages.h"

namespace weft::broker {

// Errors of every function: InvalidArgument, naming what is wrong.
class StageClaims {
 public:
  explicit StageClaims(const proto::AssignStage& assignment);

  // Each tensor that a snapshot of the stage holds (proto::copied_state), once, of its type and shape, and no
  // other; of a replica with local steps also what is kept from agreement to agreement
  // (replicas/agreement.h).
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
  // Tensors by key, in the order in which stages name them: a report of many thousands, which comes with
  // every step, is compared with that, and looked up where it is another.
  template <typename Key>
  struct Tensors {
    std::vector<std::pair<Key, dag::TensorSpec>> list{};
    std::map<Key, size_t> place{};

    void add(Key key, dag::TensorSpec spec) {
      if (place.emplace(key, list.size()).second) list.emplace_back(std::move(key), std::move(spec));
    }
    // Each once, nothing else.
    Status check(const std::vector<proto::TensorReference>& tensors, const auto& key_of,
                 const auto& name_of) const;
  };
  Status check_skipped(const proto::CheckpointReport& report) const;

  bool skips_steps_ = false;
  // Of a replica with local steps, which may have made fewer updates than the numbers of its steps say.
  struct Local {
    InnerSteps inner;
    uint32_t replica = 0;
    uint64_t after_step = 0, skipped_steps = 0;  // as it began
  };
  std::optional<Local> local_{};
  Tensors<dag::StateKey> state_;
  Tensors<std::string> predictions_;
  Numbers training_, evaluation_;
};

}  // namespace weft::broker
