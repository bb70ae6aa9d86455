// An example's job made ready to be trained in stages: its graphs as a broker prepares them, its data, and
// the initial weights of each seed.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/lower.h"
#include "data/dataset.h"
#include "data/loader.h"
#include "peer/backend/backend.h"
#include "train/prepare.h"

namespace weft::learning {

struct JobGraphs {
  configs::Job job;
  uint64_t steps = 0;
  std::shared_ptr<const data::Dataset> train;
  train::Prepared training, evaluation;
  std::shared_ptr<const dag::Lowered> lowered_training, lowered_evaluation;  // for the backend
  std::vector<data::Microbatch> held_out;                                    // read once

  uint32_t microbatches() const { return job.batch_size / job.microbatch_size; }
};

// `held_out_samples`: the first so many of the held-out data, all if there are fewer. Errors: those of the
// job file, the model and the data; InvalidArgument for a job without held-out data.
Result<JobGraphs> open_job(const std::filesystem::path& path, std::span<const std::string> sets,
                           const dag::BackendTraits& traits, uint32_t held_out_samples);

// Seed 0 begins with the file's weights, any other with the elements of each matrix and kernel in an order of
// its own: another draw of the same distribution.
dag::Weights initial_weights(const JobGraphs& graphs, uint64_t seed);

}  // namespace weft::learning
