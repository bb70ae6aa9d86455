// A job's graph at work on one backend: an executor on the job's state, and the reading of its data.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "peer/executor.h"
#include "peer/state.h"
#include "train/prepare.h"

namespace weft::train {

// As the job says. Weights, gradients and what crosses links stay float32.
peer::Precision precision_of(const configs::Job& job);
// Unsupported, with the place in the job file, when the backend cannot compute like that.
Status check_precision(const configs::Job& job, const peer::Backend& backend);

// An executor of a graph, lowered for the state's backend, with its weights; those that `state` does not hold
// yet are loaded into it. `options` speak of the lowered graph. Errors: what Executor::create and
// State::write say.
Result<std::unique_ptr<peer::Executor>> make_executor(const dag::Graph& graph, const dag::Weights& weights,
                                                      const std::shared_ptr<peer::State>& state,
                                                      peer::ExecutorOptions options = {});

// Which step it is.
struct StepPlace {
  uint64_t step = 0;       // of the run, from 1: names its samples, and what is drawn at random
  uint64_t scheduled = 0;  // where the schedule of the learning rate is read, from 1
  uint64_t update = 0;     // of those that the optimizer has made, this one included
};

// Trains: one microbatch after another in one arena.
class TrainingSession {
 public:
  // Takes over the prepared graph; those of its weights that `state` does not hold yet are loaded.
  static Result<std::unique_ptr<TrainingSession>> create(Prepared prepared, const configs::Job& job,
                                                         const std::shared_ptr<peer::State>& state);

  struct StepResult {
    double loss = 0;           // mean over the microbatches, before the update
    double gradient_norm = 0;  // of the mean gradient, before clipping
    double learning_rate = 0;
    std::string not_finite{};  // what of it; empty: all is
    bool skipped = false;      // because of that, or because it is empty: nothing was updated
    bool is_empty = false;     // nothing of it counts in the loss
  };
  // One whole step; `loader`, always the same, gives its microbatches. A microbatch out of bounds stops the
  // step before any update. `steps`: of the whole run.
  Result<StepResult> step(const StepPlace& place, uint64_t steps, data::Loader& loader);
  // Of a run that makes one step after the other.
  StepPlace place_of(uint64_t step) const { return {step, step, step - skipped_steps_}; }
  // Steps of the run that were skipped so far; to be set where it goes on from a checkpoint.
  uint64_t skipped_steps() const { return skipped_steps_; }
  void set_skipped_steps(uint64_t count) { skipped_steps_ = count; }

  peer::Executor& executor() { return *executor_; }
  const std::vector<data::Feed>& feeds() const { return feeds_; }
  // For the loader of its data.
  const std::vector<data::Divisor>& divisors() const { return divisors_; }

 private:
  Status set_inputs(const data::Microbatch& batch);
  Status run_microbatch(uint64_t step, uint32_t index, const data::Microbatch& batch);
  Status set_next_inputs(data::Loader& loader);
  bool may_skip() const;
  struct Pending {  // numbers of a step
    std::vector<std::unique_ptr<peer::Download>> losses;
    std::unique_ptr<peer::Download> squares, statistics;
  };
  Status take(const Pending& pending, StepResult& result) const;

  const configs::Job* job_ = nullptr;
  uint64_t skipped_steps_ = 0;
  std::vector<data::Feed> feeds_;
  std::vector<data::Divisor> divisors_;
  std::vector<IntegerBounds> bounds_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
  std::optional<data::Microbatch> next_;  // of the next step: in its place already
  dag::ValueId loss_;
};

// Evaluates on every sample of a data set once.
class EvaluationSession {
 public:
  // On the state that is trained: nothing is copied.
  static Result<std::unique_ptr<EvaluationSession>> create(Prepared prepared, const configs::Job& job,
                                                           const std::shared_ptr<peer::State>& state);

  struct Metrics {
    uint64_t samples = 0;
    double loss = 0;                 // mean over what counts: samples, or labels; of several losses the sum
    std::optional<double> accuracy;  // with cross_entropy; of several the first
    std::map<std::string, double> by_name;  // these, and what else people are told
  };
  // Reads `dataset` through.
  Result<Metrics> evaluate(const std::shared_ptr<const data::Dataset>& dataset, uint32_t microbatch_size);

 private:
  Result<std::map<dag::OutputRole, std::vector<double>>> outputs();

  std::vector<data::Feed> feeds_;
  std::vector<IntegerBounds> bounds_;
  dag::LossTerms terms_;
  std::unique_ptr<peer::Executor> executor_;
  std::unique_ptr<peer::MicrobatchMemory> microbatch_;
};

}  // namespace weft::train
