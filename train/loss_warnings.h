// What a job's loss reads of the model, and what is said of it before anything starts.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "configs/job.h"
#include "dag/loss.h"
#include "dag/onnx/model.h"

namespace weft::train {

// Names of the values that the terms read: outputs of the model, or any other value of its graph.
std::vector<std::string> values_read(std::span<const dag::LossSpec> losses);

// Of each term that makes its own softmax or sigmoid, and reads what one was made of already: which node it
// is, and the line to write instead.
std::vector<std::string> loss_warnings(const configs::Job& job, const onnx::OnnxModel& model);

}  // namespace weft::train
