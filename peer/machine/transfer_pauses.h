// When a transfer that failed may be tried again: after pauses that double with its attempts. While one is
// waited for, no other begins.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/result.h"
#include "base/units.h"

namespace weft::peer {

class TransferPauses {
 public:
  TransferPauses(uint32_t attempts_max, Duration first) : attempts_max_(attempts_max), first_(first) {}

  // After so many attempts of one transfer that failed: whether another one makes sense; then the pause
  // begins.
  bool try_again(Instant now, uint32_t attempts, ErrorCode code) {
    const bool may_pass = code == ErrorCode::Unavailable || code == ErrorCode::Timeout ||
                          code == ErrorCode::Cancelled || code == ErrorCode::Internal ||
                          code == ErrorCode::PermissionDenied;  // until a feed is open again
    if (!may_pass || attempts >= attempts_max_) return false;
    until_ = std::max(until_, now + first_ * (1 << std::min(attempts - 1, 10u)));
    return true;
  }
  void end(Instant now) { until_ = now; }
  bool is_over(Instant now) const { return now >= until_; }
  Instant until() const { return until_; }

 private:
  uint32_t attempts_max_;
  Duration first_;
  Instant until_{};
};

}  // namespace weft::peer
