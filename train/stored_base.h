// What a job's `base` says where that is not as the model's file has it: its frozen matrices in fewer bits.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/onnx/model.h"
#include "train/submission.h"
#include "weights/cuts.h"

namespace weft::train {

// Writes the job's model so into `folder`, which outlives the job: from then on it is the job's model, with
// its first weights, and keeps what it has. What was done, in words; nothing where `base` asks for nothing.
// Errors, with the place in the job file: InvalidArgument where there is no such matrix; what reading and
// writing say.
Result<std::optional<std::string>> store_base(configs::Job& job, const std::filesystem::path& folder);
// The same of a job as it travels, without `init`: `base` is gone. Whoever has the numbers that were rounded
// need not be sent what became of them: recipes say how to make it.
struct StoredBase {
  std::string said;
  Recipes recipes;
  std::vector<weights::SoughtTensor> rounded;  // their sources
};
Result<std::optional<StoredBase>> store_base(OpenedJob& opened, const std::filesystem::path& folder);

// The same of an outline (dag/onnx/outline.h), for plans: of its values none is read, and nothing is written.
Result<std::optional<std::string>> store_base(configs::Job& job, onnx::OnnxModel& outline);

}  // namespace weft::train
