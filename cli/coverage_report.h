// `weft inspect --device cuda`: what of a model's training the device has kernels for.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"

namespace weft::cli {

// Forward and backward of every float output, lowered as for a GPU: what training makes of the model whatever
// its loss. Errors: as importing and differentiating.
Result<dag::Graph> training_on_gpu(const onnx::OnnxModel& model, const onnx::ImportOptions& import);

// How many ops of each kind of that the host would compute in place of the GPU. Needs no GPU. Errors:
// likewise.
Result<std::map<std::string, int64_t>> ops_left_to_host(const onnx::OnnxModel& model,
                                                        const onnx::ImportOptions& import);

}  // namespace weft::cli
