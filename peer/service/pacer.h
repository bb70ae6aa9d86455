// When the next bytes may go, so that no more than a rate goes in the mean.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/units.h"

namespace weft::peer {

class Pacer {
 public:
  // Until they may; zero: now.
  Duration wait(Instant now) const { return next_ > now + kAhead ? next_ - now - kAhead : Duration{}; }
  // They go now. `rate` is in bytes a second.
  void take(Instant now, uint64_t bytes, uint64_t rate) {
    const double seconds = static_cast<double>(bytes) / static_cast<double>(rate);
    next_ = std::max(now - kBehind, next_) + Duration(static_cast<Duration::rep>(1e9 * seconds));
  }

 private:
  static constexpr Duration kAhead = std::chrono::milliseconds(20);  // small pieces need no timer each
  static constexpr Duration kBehind =
      std::chrono::milliseconds(100);  // made up for, of a timer that came late
  Instant next_{};                     // when all that went has been carried
};

}  // namespace weft::peer
