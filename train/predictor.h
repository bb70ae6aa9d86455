// Runs a job of `task: predict` on one machine: every sample once, in order, in inference mode.
#pragma once

#include <atomic>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "data/npz_writer.h"
#include "peer/backend/backend.h"

namespace weft::train {

// One array for each output of the model, in the file's order, one row a sample. Errors carry the job file's
// place; Cancelled when `stop` was set.
Result<std::vector<data::NpzArray>> predict(const configs::Job& job, peer::Backend& backend,
                                            const std::atomic<bool>* stop = nullptr);

}  // namespace weft::train
