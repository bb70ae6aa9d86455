// What a job says of its training, once: a job file, an assignment, a plan and a broker's row all hold these
// structs. docs/HACKING.md ("Adding a term of a job") says what a new term takes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"
#include "dag/optimizer.h"

namespace weft::dag {

// What decides the numbers of a step: every stage computes by these.
struct TrainingTerms {
  uint64_t seed = 0;
  uint32_t batch_size = 0;
  uint32_t microbatch_size = 0;  // divides batch_size; in a job file 0: auto, the planner chooses
  OptimizerSpec optimizer{};
  ScheduleSpec schedule{};
  double clip_norm = 0;          // 0: no clipping
  uint32_t gradient_ranges = 1;  // divides the microbatches of a step (dag/gradient_order.h)
  OnDivergence on_divergence = OnDivergence::Stop;

  uint32_t microbatches() const { return batch_size / microbatch_size; }  // of a step
  // Updates wait until all numbers of their step are known: what is done depends on all of them.
  bool decides_together() const { return clip_norm > 0 || skips_diverged(); }
  bool skips_diverged() const { return on_divergence == OnDivergence::Skip; }
};

// The same for one job's data, which say how long it is.
struct TrainingSpec : TrainingTerms {
  uint64_t steps = 0;  // 0: prediction
  // Ascending, at most data::kEmptyStepsMax: steps in which no label counts. They are computed, and skipped.
  std::vector<uint64_t> empty_steps{};

  bool may_skip() const { return skips_diverged() || !empty_steps.empty(); }
  bool is_empty(uint64_t step) const {
    return std::binary_search(empty_steps.begin(), empty_steps.end(), step);
  }
};

// When checkpoints are made: at most one of the two is set; neither means that whoever trains decides.
struct CheckpointSpec {
  std::optional<Duration> every{};
  std::optional<uint64_t> steps{};
};

// Between which steps a run does something else: whoever conducts it goes by this, and no stage hears of it.
struct Borders {
  uint64_t evaluate_every = 0;  // steps; 0: only what is done without being asked
  CheckpointSpec checkpoint{};
};

}  // namespace weft::dag
