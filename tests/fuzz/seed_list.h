// What the sources of seeds.h make seeds with.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/seeds.h"

namespace weft::fuzz {

using Bytes = std::vector<std::byte>;

inline Bytes bytes_of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}
inline Bytes joined(std::initializer_list<std::span<const std::byte>> parts) {
  Bytes all;
  for (const auto part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}
inline Bytes number(uint64_t value, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(value >> (8 * i));
  return bytes;
}

class Seeds {
 public:
  void add(std::string name, Bytes bytes) { all_.push_back({std::move(name), std::move(bytes)}); }
  void add(std::string name, std::string_view text) { add(std::move(name), bytes_of(text)); }
  std::vector<Seed> take() { return std::move(all_); }

 private:
  std::vector<Seed> all_;
};

void onnx_seeds(Seeds& seeds);
void onnx_file_seeds(Seeds& seeds);
void node_seeds(Seeds& seeds);

}  // namespace weft::fuzz
