// SHA-256, the name of everything that is stored: digests as 64 lower-case hex digits.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::storage {

// Bytes in any number of pieces. After hex() it is spent.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view text);
// Reads the file in pieces of 1 MiB. Errors as storage::Files::read.
Result<std::string> sha256_of_file(const std::filesystem::path& path);

bool is_sha256_hex(std::string_view text);

}  // namespace weft::storage
