// Runs a model over samples on one machine: every sample once, in order, in inference mode. What is predicted
// goes to the file as it is computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "peer/backend/backend.h"

namespace weft::train {

struct PredictOptions {
  uint32_t samples_max = 0;  // only the first so many; 0: all
  const std::atomic<bool>* stop = nullptr;
  std::function<void(const std::string&)> warn{};  // called before anything is computed
};

// Writes job.output: an npz with one array for each output of the model, in the file's order, one row a
// sample. An output without an axis of samples is written as it is where all samples are one microbatch.
// Returns how many samples were predicted. Errors carry the job file's place; Cancelled when `stop` was set;
// the output is whole or not there.
Result<uint64_t> predict(const configs::Job& job, const onnx::OnnxModel& model, peer::Backend& backend,
                         const PredictOptions& options = {});

}  // namespace weft::train
