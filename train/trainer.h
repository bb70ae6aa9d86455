// Trains a job on one machine: the loop of steps over an executor, with evaluation, checkpoints and the
// trained file. Events go to a sink as they happen; the caller prints them.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "peer/backend/backend.h"
#include "train/adapter_check.h"
#include "train/outputs.h"

namespace weft::train {

struct StartEvent {
  uint64_t first_step = 1;  // larger after a resume
  uint64_t steps = 0;
  uint64_t sample_count = 0;
  uint64_t batch_size = 0;
  size_t parameter_tensors = 0;
  int64_t parameter_elements = 0;
  size_t frozen_tensors = 0;
  Bytes persistent, microbatch;  // device memory: weights, gradients and slots; one microbatch in flight
  std::string fingerprint;
  std::vector<std::string> warnings;
  std::vector<std::string> notes;  // what is worth knowing, and no reason to worry
};
struct StepEvent {
  uint64_t step = 0;
  double loss = 0;  // before the update
  double learning_rate = 0;
  double seconds = 0;  // since the previous step event, or since the start
  double samples_per_second = 0;
  double gradient_norm = 0;  // before clipping
  bool skipped = false;      // it was not finite, and nothing was updated; then it has no loss (NaN)
};
struct EvaluationEvent {
  uint64_t after_step = 0;
  uint64_t samples = 0;
  std::map<std::string, double> metrics;  // loss; accuracy with cross_entropy; perplexity of a text
  std::string codecs{};                   // of compressed links that it ran over
};
struct CheckpointEvent {
  uint64_t after_step = 0;
  std::filesystem::path path;
};
// Replicas with local steps came to the same weights (train/replicas_in_turn.h).
struct AgreementEvent {
  uint64_t after_step = 0;
  std::vector<uint64_t> steps;  // that each replica had made since they agreed last
  uint64_t sent_bytes = 0;      // by all replicas together
  uint64_t returned_bytes = 0;  // to each of them
  uint64_t dense_bytes = 0;     // that one of them would have sent uncompressed
};
struct ResultEvent {
  uint64_t steps = 0;  // done in all, also before a resume
  bool stopped = false;
  std::string diverged;  // not empty: which step was not finite, and what of it; the run ended there
  bool failed = false;   // it ended with an error, and `checkpoint` has what was learnt
  double seconds = 0;
  std::filesystem::path output, inference;  // empty when stopped early
  std::filesystem::path checkpoint;         // of a run that ended early: where to go on from
  std::map<std::string, double> metrics;    // of the last evaluation
  std::filesystem::path adapter{};          // of a job with adapters: their folder
  std::optional<MergeCheck> merge{};        // and how the trained model computes
};
struct WarningEvent {
  uint64_t after_step = 0;
  std::string text;
};
using Event = std::variant<StartEvent, StepEvent, AgreementEvent, EvaluationEvent, CheckpointEvent,
                           WarningEvent, ResultEvent>;
using EventSink = std::function<void(const Event&)>;

struct TrainOptions {
  std::filesystem::path resume;    // a checkpoint's folder or manifest; empty: from the start
  bool other_data = false;         // go on from it with data of other bytes, too
  std::filesystem::path replay{};  // a record of rounds to make again (train/outer_record.h); empty: none
  const std::atomic<bool>* stop = nullptr;  // set to finish the step at hand, save a checkpoint and return
};

// Runs the job to its end. The result says what was written; a run that was stopped returns a result with
// `stopped`, and one whose loss or gradient was not finite with `diverged`, not an error.
//
// Whether its files can be written is found before the first step. Where a periodic checkpoint fails all the
// same, a warning says so and training goes on; where the trained file or an evaluation fails, the error
// names a checkpoint of the last step, beside the output or, where that cannot be, in the folder of temporary
// files.
Result<ResultEvent> train(const configs::Job& job, peer::Backend& backend, const TrainOptions& options,
                          const EventSink& sink);
}  // namespace weft::train
