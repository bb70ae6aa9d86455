// `weft inspect --device cuda`: what of a model's training the device has kernels for.
#pragma once

#include <map>
#include <string>

#include "base/result.h"
#include "dag/onnx/import.h"
#include "dag/onnx/model.h"

namespace weft::cli {

// How many ops of each kind the host would compute in place of the GPU: forward and backward of every float
// output, lowered as for that device. Needs no GPU. Errors: as importing and differentiating.
Result<std::map<std::string, int64_t>> ops_left_to_host(const onnx::OnnxModel& model,
                                                        const onnx::ImportOptions& import);

}  // namespace weft::cli
