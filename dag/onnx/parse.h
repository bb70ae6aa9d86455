// Internal to dag/onnx: an ONNX file taken apart, within limits. How the weights are come by is the caller's.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/external.h"
#include "dag/onnx/limits.h"
#include "dag/onnx/structure.h"

namespace weft::onnx {

// The bytes of a model file, scanned before memory is taken and again once they are read: what is parsed is
// what was scanned, even if someone rewrote the file in between.
Result<std::vector<std::byte>> read_scanned(const std::filesystem::path& path, const ImportLimits& limits);

// The tensor of an initializer whose claim has been looked at; `outside`: its data is not in the model's
// file.
using TakeWeight = std::function<Result<dag::Tensor>(const pb::TensorProto& proto,
                                                     const dag::TensorSpec& spec, bool outside)>;

// Corrupted, by name, where two initializers claim the same bytes of a file beside the model, whether or not
// they are read. REQUIRES: a scan let the bytes pass.
Result<OnnxModel> parse_model(std::span<const std::byte> bytes, const ImportLimits& limits,
                              const TakeWeight& take, bool is_outline = false);

// Reads what a model may keep beside itself, opening each file once.
class ExternalReader {
 public:
  // `folder` is the model's; nullptr for a model that may have nothing outside.
  ExternalReader(const std::filesystem::path* folder, const ImportLimits& limits)
      : folder_(folder), limits_(limits) {}

  Result<dag::Tensor> read(const pb::TensorProto& proto);

 private:
  Result<const File*> open(const std::string& location);

  const std::filesystem::path* folder_;
  const ImportLimits& limits_;
  std::map<std::string, File> files_;
};

}  // namespace weft::onnx
