// Internal to dag/onnx: the bytes of a model file without the data of its large initializers. What is left
// is a model file too, and small, so that protobuf never holds a weight.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "dag/onnx/scan.h"

namespace weft::onnx {

struct Skeleton {
  std::vector<std::byte> bytes;
  // Data that was left out: little-endian elements, at `offset` of the file.
  struct Cut {
    uint32_t field = 0;  // of TensorProto: raw_data or float_data
    int64_t offset = 0, size = 0;
  };
  std::vector<std::optional<Cut>> initializers;  // of the main graph, in the file's order
};

// Leaves out data of more than `kept_max` bytes. Errors: Corrupted for bytes that are no ONNX model, and what
// `read` says. REQUIRES: a scan let the file pass.
Result<Skeleton> read_skeleton(int64_t size, const ReadAt& read, int64_t kept_max);

}  // namespace weft::onnx
