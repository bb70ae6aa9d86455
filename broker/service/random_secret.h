#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "proto/messages.h"
#include "security/token.h"

namespace weft::broker {

// From the system's randomness.
inline proto::Secret random_secret() {
  proto::Secret secret;
  security::fill_random(secret);
  return secret;
}

inline uint64_t random_number() {
  std::array<uint8_t, sizeof(uint64_t)> bytes{};
  security::fill_random(bytes);
  return std::bit_cast<uint64_t>(bytes);
}

}  // namespace weft::broker
