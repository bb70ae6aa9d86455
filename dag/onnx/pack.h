// Where the tensors of an ONNX model lie in its files, so that a model can travel as its bytes without
// tensors and its tensors by SHA-256. The wire format is walked without building anything, in constant memory
// beside the answer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "dag/onnx/limits.h"

namespace weft::onnx {

// The raw little-endian elements of one initializer: what a checkpoint names by their hash.
struct TensorRange {
  uint64_t offset = 0;  // bytes from the file's start
  uint64_t size = 0;    // bytes
  bool operator==(const TensorRange&) const = default;
};

// Smaller tensors stay where they are: they cost more as blobs than as bytes.
inline constexpr uint64_t kPackedTensorMin = 4096;  // bytes

// The raw_data, or packed float_data, of the main graph's initializers of at least kPackedTensorMin bytes,
// ascending, none overlapping. Corrupted for bytes that are no ONNX model, ResourceExhausted beyond `limits`,
// and what the disk says.
Result<std::vector<TensorRange>> tensor_ranges(std::span<const std::byte> model_bytes,
                                               const ImportLimits& limits = {});
Result<std::vector<TensorRange>> tensor_ranges(const std::filesystem::path& model,
                                               const ImportLimits& limits = {});

// A file beside the model that holds tensors of it.
struct ExternalFile {
  std::string location;  // relative to the model's folder and beneath it, without "." and ".."
  uint64_t size = 0;     // bytes
  std::vector<TensorRange>
      tensors;  // as tensor_ranges; tensors that do not say how long they are, are left out
};

// The files that the model's initializers name, in the order of their names. Each is opened once, to see that
// it may be read: PermissionDenied for links, "..", absolute paths; NotFound. At most 64 files.
Result<std::vector<ExternalFile>> list_external_files(const std::filesystem::path& model,
                                                      const ImportLimits& limits = {});

}  // namespace weft::onnx
