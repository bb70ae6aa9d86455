// When bytes that enter an emulated link come out of it. Pure: time is handed in, chance comes from the seed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/rng.h"
#include "base/units.h"
#include "net/shaper.h"

namespace weft::net {

inline constexpr size_t kSegmentSize = 1448;

class LinkModel {
 public:
  // `round_trip` is what a lost segment waits.
  LinkModel(const ShapeDirection& direction, Duration round_trip, uint64_t seed, uint64_t stream);

  // A segment of `size` bytes enters at `now`: when it has come out. Never before an earlier one.
  // REQUIRES: `now` does not go backwards.
  Instant enter(size_t size, Instant now);

  // Whether it does anything at all.
  bool is_transparent() const;
  // Bytes that may be inside: what the link holds, and 200 ms before it, as in a router's queue.
  size_t size_max() const;

 private:
  const ShapeDirection direction_;
  const Duration round_trip_;
  Rng rng_;
  double burst_ns_ = 0;  // the link may catch up on this much time that it stood idle
  Instant origin_{};     // the first `now`
  double free_ns_ = 0;   // since the origin: when the link has sent all that entered
  Instant last_{};
  bool is_used_ = false;
};

}  // namespace weft::net
