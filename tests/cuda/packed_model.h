// Packed ONNX files of tests/, and what stands in models/: networks at their real sizes, without weights.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/model.h"

namespace weft::test {

// The paths of models/*.onnx.gz, from the repository's root, in the order of their names.
std::vector<std::string> real_models();

// A file with its weights, or one of real_models(): of that large floats are zeros.
Result<onnx::OnnxModel> read_packed(const std::string& path);

}  // namespace weft::test
