// Which files of a folder hold tensors, and which tensors a file holds: files of
// safetensors and GGUF, and what ONNX models keep beside themselves. The folder of a Hugging Face cache will do, whose files are links.
#pragma once

#include <filesystem>
#include <stop_token>
#include <vector>

#include "base/result.h"
#include "weights/forms.h"

namespace weft::weights {

inline constexpr size_t kFilesMax = 10'000;
inline constexpr int kDepthMax = 12;  // folders within folders

// Errors: NotFound, InvalidArgument where there is no folder.
Status check_folder(const std::filesystem::path& folder);

// Regular files by their real paths, each once, sorted. A link to a file is followed, one to a folder is not.
// Folders that may not be read are passed over. Errors: as check_folder(); ResourceExhausted beyond
// kFilesMax; Cancelled.
Result<std::vector<std::filesystem::path>> find_files(const std::filesystem::path& folder,
                                                      const std::stop_token& stop);

// The tensors whose bytes lie in a row, and in which file.
struct TensorsOfFile {
  std::filesystem::path file;
  std::vector<StoredTensor> tensors;
};
// Headers alone are read. `path`: one of find_files(). Errors: as data::TensorFiles and onnx::open_model.
Result<std::vector<TensorsOfFile>> tensors_of(const std::filesystem::path& path);

}  // namespace weft::weights
