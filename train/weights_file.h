// The weights of a trained model as a file of tensors (data/safetensors.h), which a job's `init` takes again.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"

namespace weft::train {

// Whether that file can be written beside the trained model at `output`: InvalidArgument where its name does
// not end in .safetensors, or is that of what else is written or of what the job reads; else what
// storage::Files::check_writable says.
Status check_weights_output(const std::filesystem::path& weights, const std::filesystem::path& output);
Status check_weights_output(const std::filesystem::path& weights, const configs::Job& job);

// A matrix with its axes exchanged. REQUIRES: rank 2.
dag::Tensor transposed(const dag::Tensor& matrix);

// What a job learns beside what its model's graph says: the names of constants that it trains.
Result<std::vector<std::string>> learnt_names(const configs::Job& job, const std::filesystem::path& model);

// Writes parameters, frozen ones too, and running statistics of `model`, by their initializers' names and
// with the very bits that it has, and of what else it holds what `learnt` names. Matrices that it keeps as
// integers are written in F32, those that it keeps as halves behind a Cast as these, both by the weight's
// name. The file appears whole or not at all. How many tensors there are. Errors: what reading and writing
// say.
Result<size_t> write_weights(const std::filesystem::path& model, std::span<const std::string> learnt,
                             const std::filesystem::path& weights);

}  // namespace weft::train
