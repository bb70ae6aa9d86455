// A model whose large weights stay where they lie: what every weight is called, how large it is and where its
// bytes are, but not what it holds. What the import may have to know as numbers, it has.
#pragma once

#include <filesystem>

#include "base/result.h"
#include "dag/onnx/files.h"
#include "dag/onnx/model.h"

namespace weft::onnx {

// Weights of more bytes are not read.
inline constexpr int64_t kOutlineReadMax = int64_t{1} << 20;

// For plans and people. Files beside the model need not be there: floats of theirs then are unread, too.
// Errors as of read_model; NotFound for a small integer tensor whose external data are absent, for it may
// decide shapes.
Result<OnnxModel> read_outline(const std::filesystem::path& path);

// For those who need the bytes later: every weight must be there. Errors as of read_model.
Result<OnnxModel> open_model(const std::filesystem::path& path);
Result<OnnxModel> open_model(ModelFiles& files, int64_t read_max = kOutlineReadMax);

}  // namespace weft::onnx
