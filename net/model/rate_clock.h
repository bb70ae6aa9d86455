// How long bytes take to go out at a rate, to the nanosecond: whole numbers only, so that the simulator gets
// the same from every compiler.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace weft::net {

class RateClock {
 public:
  // Not limited: 0, and what is no rate at all. `burst`: how much time that it stood idle it may catch up on.
  explicit RateClock(double bytes_per_second, Duration burst = {});

  // For what comes from now on. What has come keeps its time.
  void set_rate(double bytes_per_second);

  bool is_limited() const { return bits_per_second_ > 0; }
  // `size` bytes come at `at` and go after those before: when the last of them has gone.
  Instant pass(uint64_t size, Instant at);
  Duration time_of(uint64_t size) const;  // for `size` bytes, rounded down
  Instant free() const { return free_; }  // when all that came has gone; the least Instant before the first

 private:
  uint64_t bits_per_second_ = 0;
  Duration burst_{};
  Instant free_ = Instant::min();
  uint64_t rest_ = 0;  // of a nanosecond, times bits_per_second_
};

}  // namespace weft::net
