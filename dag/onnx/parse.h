// Internal to dag/onnx: an ONNX file taken apart, within limits. Which weights are read is the caller's.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "base/result.h"
#include "dag/onnx/files.h"
#include "dag/onnx/limits.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

struct ParseOptions {
  ImportLimits limits{};
  // Weights of more bytes are not read; how large they are and where their bytes lie is known.
  int64_t read_max = INT64_MAX;
  // Files beside the model may be absent, or not fit: floats of theirs then count as unread, with no place.
  bool may_lack_files = false;
};

// A tensor of zeros that take no memory: what stands for numbers that are not read.
Result<dag::Tensor> zeros_without_memory(const dag::TensorSpec& spec);

// The model's file is scanned before memory is taken and what is parsed is scanned again, for someone may
// rewrite it in between. Corrupted, by name, where two initializers claim the same bytes of a file beside the
// model, whether or not they are read.
Result<OnnxModel> parse_model(ModelFiles& files, const ParseOptions& options);

}  // namespace weft::onnx
