// What the broker's line may carry of blobs that nobody waits for: copies for peers that stand by. Stages
// that load now go at once, and count.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "base/units.h"

namespace weft::broker {

class Egress {
 public:
  explicit Egress(uint64_t rate) : rate_(rate) {}  // bytes a second; 0: no limit

  // Until the next bytes that nobody waits for may go; zero: now.
  Duration wait(Instant now) const {
    return rate_ != 0 && free_at_ > now + kAhead ? free_at_ - now : Duration{};
  }
  void take(Instant now, uint64_t bytes) {
    if (rate_ == 0) return;
    const double seconds = static_cast<double>(bytes) / static_cast<double>(rate_);
    free_at_ = std::max(free_at_, now - kBehind) + Duration(static_cast<Duration::rep>(1e9 * seconds));
    // Who loads may use the line as it likes, but those who wait are not to wait for ever.
    free_at_ =
        std::min(free_at_, now + std::max(kDebtMax, Duration(static_cast<Duration::rep>(1e9 * seconds))));
  }

 private:
  static constexpr Duration kAhead = std::chrono::milliseconds(20);
  static constexpr Duration kBehind = std::chrono::milliseconds(100);
  static constexpr Duration kDebtMax = std::chrono::seconds(2);
  uint64_t rate_;
  Instant free_at_{};
};

}  // namespace weft::broker
