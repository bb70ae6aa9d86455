// Internal to dag/onnx: protobuf's wire format read through a window, so that a file of any size is walked
// without being in memory. What both the scan before an import and the search for tensors stand on.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "base/result.h"
#include "dag/onnx/scan.h"

namespace weft::onnx {

class WireReader {
 protected:
  // `read` must outlive this; `size`: of the file.
  WireReader(int64_t size, const ReadAt& read) : size_(size), read_(read) {}

  Result<uint64_t> varint(int64_t& at, int64_t end) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at >= end) return corrupted(at, "a number that is cut off");
      WEFT_TRY(const uint8_t byte, byte_at(at++));
      if (shift == 63 && byte > 1) return corrupted(at, "a number of more than 64 bits");
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return value;
    }
    return corrupted(at, "a number of more than ten bytes");
  }

  Result<uint8_t> byte_at(int64_t at) {
    if (at < window_begin_ || at >= window_begin_ + window_size_) {
      window_begin_ = at;
      window_size_ = std::min<int64_t>(static_cast<int64_t>(window_.size()), size_ - at);
      WEFT_TRY_STATUS(read_(at, std::span(window_).first(static_cast<size_t>(window_size_))));
    }
    return static_cast<uint8_t>(window_[static_cast<size_t>(at - window_begin_)]);
  }

  static tl::unexpected<Error> corrupted(int64_t at, const char* what) {
    return fail(ErrorCode::Corrupted,
                "not an ONNX model: " + std::string(what) + " near byte " + std::to_string(at));
  }

  int64_t size_;
  const ReadAt& read_;

 private:
  std::array<std::byte, 16384> window_{};
  int64_t window_begin_ = 0;
  int64_t window_size_ = 0;
};

}  // namespace weft::onnx
