// An input taken apart: choices first, then what is decoded.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace weft::fuzz {

class Input {
 public:
  explicit Input(std::span<const std::byte> bytes) : left_(bytes) {}

  uint8_t byte() { return static_cast<uint8_t>(number(1)); }
  // Little-endian; zeros follow the input's end.
  uint64_t number(size_t size) {
    uint64_t value = 0;
    const auto bytes = take(size);
    for (size_t i = 0; i < bytes.size(); ++i) value |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    return value;
  }
  // As many, or what there is.
  std::span<const std::byte> take(size_t size) {
    const auto taken = left_.first(std::min(size, left_.size()));
    left_ = left_.subspan(taken.size());
    return taken;
  }
  std::span<const std::byte> rest() { return take(left_.size()); }
  bool empty() const { return left_.empty(); }

 private:
  std::span<const std::byte> left_;
};

inline std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace weft::fuzz
