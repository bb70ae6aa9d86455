// What the broker alone keeps of a run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/units.h"
#include "dag/metrics.h"
#include "dag/training.h"
#include "proto/hello.h"
#include "proto/serving.h"
#include "replicas/local_steps.h"

namespace weft::proto {

// A plan that runs, but for its assignments, which are messages of their own: what a broker that was
// restarted goes on with.
struct RunStage {
  PeerId peer{};
  std::vector<uint32_t> parameters{};  // of the whole graph, in this stage's order: where its squares belong
  double microbatch_seconds = 0;       // predicted: computing one microbatch, forward and backward
  bool pinned = false;                 // nobody else may have it
  std::string owner{};                 // not empty: only this owner's machines may have it
};
// Of RunTerms::gentler: links are dense long before.
inline constexpr uint32_t kGentlerMax = 16;
// What a planned run comes to beside its stages. Its job says the first block, its planner the second; the
// broker has it in memory (broker/run/planned_run.h), on its planner's pipe and in its rows.
struct RunTerms {
  // In a RunPlan the steps and the sizes of its batches alone: each stage's assignment has all of it.
  dag::TrainingSpec training{};
  dag::Borders borders{};
  dag::LossTerms loss_terms{};  // of what evaluation reports
  // Of a job whose replicas make local steps: then steps, here and in `training`, are inner steps.
  std::optional<replicas::LocalSteps> local_steps{};
  // Of a job whose replicas add each step's gradients: by replica, how many of its gradient_ranges it
  // computes; empty: there is one replica, which computes all.
  std::vector<uint32_t> exact_ranges{};
  // They come and go with the peers, up to so many; 0: there are as many as the job says.
  uint32_t replicas_max = 0;
  bool equal_bits_required = false;  // then a stage goes to nobody of another fingerprint
  uint32_t op_set = 0;               // of its graphs (dag/op_set.h); 0: of a plan of before they were counted

  uint32_t microbatches = 0;  // a step
  uint32_t parameter_count = 0;
  // Evaluation, or prediction: microbatches in all and the samples in each but the last; 0: none.
  uint32_t forward_microbatches = 0;
  uint64_t forward_samples = 0;
  bool masked = false;  // the evaluation graph leaves padding out and counts what counted
  bool accuracy = false;
  uint32_t prediction_stages = 0;  // how many stages report outputs
  bool equal_bits = true;          // all peers of one fingerprint
  std::string fingerprint{};
  std::vector<std::string> explanation{};
  std::vector<Secret> relay_tickets{};  // of its links
  Secret data_key{};
  Duration predicted_step{};
  // Of links whose codecs the planner chose: how much gentler they had to become (plan::Compression).
  std::optional<uint32_t> gentler{};
  ServedModel served{};  // of a job that serves; then nothing is trained, evaluated or predicted
};
struct RunPlan {
  std::vector<RunStage> stages{};
  uint64_t after_step = 0;
  RunTerms terms{};
  // The run before went back because of this step, which was not finite: if it is so again, the job ends. 0:
  // it did not, or has got past it.
  uint64_t diverged_at = 0;
};

}  // namespace weft::proto
