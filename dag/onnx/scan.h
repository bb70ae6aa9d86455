// A walk over the wire format of an ONNX model that counts what protobuf would build from it, without
// building anything. It needs constant memory beside a small window of the file, jumps over tensor data, and
// stops at the first count beyond the limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/result.h"
#include "dag/onnx/limits.h"

namespace weft::onnx {

struct ScanCounts {
  int64_t messages = 0;
  int64_t nodes = 0;
  int64_t attributes = 0;
  int64_t tensors = 0;
  int64_t functions = 0;
  int64_t strings = 0;
  int64_t numbers = 0;         // elements of repeated number fields
  int64_t payload_bytes = 0;   // of strings and raw tensor data
  int64_t overhead_bytes = 0;  // estimate of what protobuf takes beyond the payload
  int depth = 0;
};

// Reads `bytes.size()` bytes at `offset`; called with ranges inside [0, size) only.
using ReadAt = std::function<Status(int64_t offset, std::span<std::byte> bytes)>;

// Errors: Corrupted for bytes that are no protobuf message (with the offset), ResourceExhausted for a count
// beyond `limits` (naming it), and whatever `read` returns.
Result<ScanCounts> scan_model(int64_t size, const ReadAt& read, const ImportLimits& limits);
Result<ScanCounts> scan_model(std::span<const std::byte> bytes, const ImportLimits& limits);
// The same for a lone TensorProto, as ONNX's test cases hold them.
Result<ScanCounts> scan_tensor(std::span<const std::byte> bytes, const ImportLimits& limits);

}  // namespace weft::onnx
