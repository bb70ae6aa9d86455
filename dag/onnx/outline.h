// A model as its file describes it, for plans: what every weight is called and how large it is, but not what
// it holds. Weights need not be there: external data are not opened, but for the few numbers that may say a
// shape.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "dag/onnx/model.h"

namespace weft::onnx {

// Floats of more than a few elements are zeros, which take no memory. Errors as of read_model; NotFound for a
// small integer tensor whose external data are absent: it may decide shapes.
Result<OnnxModel> read_outline(const std::filesystem::path& path);

}  // namespace weft::onnx
