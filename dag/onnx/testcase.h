// The data of ONNX's test cases: one TensorProto a file.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "dag/onnx/limits.h"
#include "dag/tensor.h"

namespace weft::onnx {

struct NamedTensor {
  std::string name;  // as the file has it, often empty
  dag::Tensor tensor;
};

// Errors: NotFound; Corrupted when the file is no tensor (a sequence, say); Unsupported for strings.
Result<NamedTensor> read_tensor_file(const std::filesystem::path& path, const ImportLimits& limits = {});

}  // namespace weft::onnx
