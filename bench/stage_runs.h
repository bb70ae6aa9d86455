// For bench/stages.cc: a stage of a plan that runs by itself, and its times.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/result.h"
#include "cli/plan_job.h"
#include "dag/split.h"
#include "peer/executor.h"

namespace weft::bench {

// Seconds of this thread's own processor time.
double now();

// A stage at work, by itself: what it would receive is made up.
struct Stage {
  std::unique_ptr<peer::Executor> executor;
  std::unique_ptr<peer::MicrobatchMemory> microbatch;
  std::vector<uint32_t> segment_of_op;
  uint32_t segments = 0;
  std::vector<std::pair<dag::ValueId, dag::Tensor>> inputs;
  std::vector<std::vector<double>> kernels;  // by group, seconds of each run
  std::vector<std::vector<double>> seconds;  // by segment, likewise
  std::vector<double> update;                // likewise
};

Result<Stage> make_stage(dag::StageGraph of, std::vector<dag::ValueId> sends, const cli::PlannedJob& job,
                         peer::Backend& backend);

// A microbatch and an update; their seconds are added to the stage's.
Status run_once(Stage& stage);

}  // namespace weft::bench
