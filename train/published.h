// What a job's model has of published weights that lie in a folder here, and perhaps on the disks of others.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "base/result.h"
#include "train/submission.h"
#include "weights/cuts.h"

namespace weft::train {

struct FoundParts {
  size_t tensors = 0;
  uint64_t bytes = 0;  // of them, as they travel
};

// Adds recipes for tensors that were cut out of the folder's. `rounded`: matrices that travel in fewer bits,
// by the recipes that are there. Errors: as of weights::find_cuts(); what reading the model says.
Result<FoundParts> add_parts(const std::filesystem::path& folder, const configs::Job& job,
                             std::span<const weights::SoughtTensor> rounded, Submission& submission);

}  // namespace weft::train
