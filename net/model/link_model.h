// When bytes that enter an emulated link come out of it. Pure: time is handed in, chance comes from the seed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "base/units.h"
#include "net/model/rate_clock.h"

namespace weft::net {

inline constexpr size_t kSegmentSize = 1448;

struct ShapeDirection {
  double bytes_per_second = 0;  // 0: not limited
  Duration delay{};             // one way
  Duration jitter{};            // uniform in [0, jitter), added to the delay; order is kept
  double loss = 0;  // of a segment of 1448 bytes; a lost one comes a round trip later, as TCP's repair does
};

class LinkModel {
 public:
  // `round_trip` is what a lost segment waits.
  LinkModel(const ShapeDirection& direction, Duration round_trip, uint64_t seed, uint64_t stream);

  // A segment of `size` bytes enters at `now`: when it has come out. Never before an earlier one.
  // REQUIRES: `now` does not go backwards.
  Instant enter(size_t size, Instant now);

  // Whether it does anything at all.
  bool is_transparent() const;
  Duration delay() const { return direction_.delay; }
  // Bytes that may be inside, where a line of `line_rate` bytes a second (0: none) lies before or behind it:
  // what the link holds, and 200 ms before it, as in a router's queue.
  size_t size_max(double line_rate = 0) const;

 private:
  const ShapeDirection direction_;
  const Duration round_trip_;
  const uint64_t lost_below_;  // of 2^32
  Rng rng_;
  RateClock clock_;
  Instant last_ = Instant::min();
};

}  // namespace weft::net
