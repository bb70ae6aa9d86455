// Hashes of short keys for tables in memory. Nothing depends on their values but time.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace weft::text {

// A search passes over no more slots than these; a table in which more keys meet is refused.
inline constexpr uint32_t kProbesMax = 256;

inline uint64_t mixed(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = Wide{a ^ 0x9E3779B97F4A7C15u} * (b ^ 0xD1B54A32D192ED03u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t hash_of(std::string_view bytes) {
  uint64_t hash = bytes.size();
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    hash = mixed(hash, word);
    bytes.remove_prefix(8);
  }
  uint64_t rest = 0;
  std::memcpy(&rest, bytes.data(), bytes.size());
  return mixed(hash, rest);
}

}  // namespace weft::text
