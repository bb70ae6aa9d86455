#include "dag/onnx/outline.h"

#include "dag/onnx/parse.h"

namespace weft::onnx {
namespace {

constexpr int64_t kWeightBytesMax = int64_t{512} << 30;  // all together, where nobody reads them

Result<OnnxModel> at(const std::filesystem::path& path, const ParseOptions& options) {
  auto model = parse_model(*files_at(path), options);
  if (!model) return fail(model.error().within(path.string()));
  return model;
}

}  // namespace

Result<OnnxModel> read_outline(const std::filesystem::path& path) {
  ParseOptions options{.read_max = kOutlineReadMax, .may_lack_files = true};
  options.limits.weights_bytes_max = kWeightBytesMax;
  return at(path, options);
}

Result<OnnxModel> open_model(const std::filesystem::path& path) {
  return at(path, {.read_max = kOutlineReadMax});
}

Result<OnnxModel> open_model(ModelFiles& files, int64_t read_max) {
  return parse_model(files, {.read_max = read_max});
}

}  // namespace weft::onnx
