#include "weights/catalogue.h"

#include <algorithm>
#include <map>
#include <string>
#include <system_error>

#include "dag/onnx/files.h"
#include "dag/onnx/outline.h"
#include "data/gguf.h"
#include "data/safetensors.h"

namespace weft::weights {
namespace {
namespace fs = std::filesystem;

bool holds_tensors(const fs::path& name) {
  return name.extension() == ".safetensors" || name.extension() == ".gguf" || name.extension() == ".onnx";
}

// A file of a cache is a link whose name says what it is; where it leads has no such name.
Result<std::vector<TensorsOfFile>> of_safetensors(const fs::path& path) {
  WEFT_TRY(const data::TensorFiles files, data::TensorFiles::open(path));
  TensorsOfFile of{path, {}};
  for (const auto& [name, place] : files.tensors()) of.tensors.push_back({place.spec, place.offset});
  return std::vector{std::move(of)};
}

// Numbers in blocks are in no form that a job has them in.
Result<std::vector<TensorsOfFile>> of_gguf(const fs::path& path) {
  WEFT_TRY(const auto file, data::File::open(path));
  WEFT_TRY(const std::vector<data::GgufTensor> tensors, data::read_gguf(*file));
  TensorsOfFile of{path, {}};
  for (const data::GgufTensor& tensor : tensors)
    if (tensor.unknown_type.empty() && tensor.packing == data::Packing::None)
      of.tensors.push_back({tensor.spec, tensor.offset});
  return std::vector{std::move(of)};
}

Result<std::vector<TensorsOfFile>> of_onnx(const fs::path& path) {
  const auto parts = onnx::files_at(path);
  const auto model = onnx::open_model(*parts, /*read_max=*/0);
  if (!model) return fail(model.error().within(path.string()));
  std::map<std::string, TensorsOfFile> files;
  for (const auto& [name, value] : model->weights()) {
    const auto place = model->place_of(name);
    if (!place || place->size != value.spec().bytes().value) continue;
    TensorsOfFile& of = files[place->location];
    of.file = place->location.empty() ? path : path.parent_path() / place->location;
    of.tensors.push_back({value.spec(), static_cast<uint64_t>(place->offset)});
  }
  std::vector<TensorsOfFile> all;
  all.reserve(files.size());
  for (auto& [location, of] : files) all.push_back(std::move(of));
  return all;
}

}  // namespace

Status check_folder(const fs::path& folder) {
  std::error_code error;
  const fs::file_status status = fs::status(folder, error);
  if (!fs::exists(status)) return fail(ErrorCode::NotFound, folder.string() + ": there is no such folder");
  if (!fs::is_directory(status)) return fail(ErrorCode::InvalidArgument, folder.string() + ": is no folder");
  return {};
}

Result<std::vector<fs::path>> find_files(const fs::path& folder, const std::stop_token& stop) {
  WEFT_TRY_STATUS(check_folder(folder));
  std::error_code error;
  // By what a file really is: several links of a cache lead to one.
  std::map<fs::path, fs::path> files;
  fs::recursive_directory_iterator at(folder, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && at != end; at.increment(error)) {
    if (stop.stop_requested()) return fail(ErrorCode::Cancelled, "the search for weights was stopped");
    if (at.depth() >= kDepthMax) at.disable_recursion_pending();
    std::error_code gone;  // since it was listed: no file of ours
    if (!holds_tensors(at->path().filename()) || !at->is_regular_file(gone)) continue;
    const fs::path real = fs::canonical(at->path(), gone);
    if (gone) continue;
    files.try_emplace(real, at->path());
    if (files.size() > kFilesMax)
      return fail(ErrorCode::ResourceExhausted, folder.string() + ": holds more than " +
                                                    std::to_string(kFilesMax) +
                                                    " files of weights; say a folder further down");
  }
  if (error) return fail(ErrorCode::Unavailable, folder.string() + ": " + error.message());
  std::vector<fs::path> paths;
  paths.reserve(files.size());
  for (const auto& [real, path] : files) paths.push_back(path);
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<std::vector<TensorsOfFile>> tensors_of(const fs::path& path) {
  WEFT_TRY(std::vector<TensorsOfFile> files, path.extension() == ".onnx"   ? of_onnx(path)
                                             : path.extension() == ".gguf" ? of_gguf(path)
                                                                           : of_safetensors(path));
  for (TensorsOfFile& of : files) {
    std::erase_if(of.tensors, [](const StoredTensor& tensor) { return tensor.spec.bytes().value == 0; });
    std::sort(of.tensors.begin(), of.tensors.end(),
              [](const auto& a, const auto& b) { return a.offset < b.offset; });
  }
  return files;
}

}  // namespace weft::weights
