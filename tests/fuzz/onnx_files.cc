#include "dag/onnx/outline.h"
#include "dag/onnx/pack.h"
#include "dag/onnx/testcase.h"
#include "tests/fuzz/files.h"
#include "tests/fuzz/import_limits.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {

// Beside the model lies `data`, 4096 bytes.
void onnx_files(std::span<const std::byte> bytes) {
  static const Folder kFolder;
  static const bool kWritten [[maybe_unused]] = !kFolder.write("data", std::vector<std::byte>(4096)).empty();
  const auto path = kFolder.write("model.onnx", bytes);
  if (const auto model = weft::onnx::read_model(path, small_limits())) import_within_limits(*model);
  if (const auto outline = weft::onnx::read_outline(path)) import_within_limits(*outline);
  if (const auto files = weft::onnx::list_external_files(path, small_limits()))
    for (const auto& file : *files) {
      uint64_t end = 0;
      for (const auto& range : file.tensors) {
        WEFT_CHECK(range.offset >= end && range.size <= file.size && range.offset <= file.size - range.size);
        end = range.offset + range.size;
      }
    }
  (void)weft::onnx::read_tensor_file(path, small_limits());
}

}  // namespace weft::fuzz
