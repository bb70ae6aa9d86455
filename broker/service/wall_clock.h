// The time of day, by which what lasts is written down and compared.
#pragma once

#include <chrono>
#include <cstdint>

namespace weft::broker {

inline int64_t unix_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace weft::broker
