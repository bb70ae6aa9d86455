// How fast tensors come over a link, for the planner's picture of it: bytes over the time in which a large
// tensor was under way, all of them and all the link's connections together. Where several are under way at
// once, or small ones come between, each stretch from one's end to the next one's counts for itself. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/units.h"
#include "proto/messages.h"

namespace weft::peer {

class LinkMeter {
 public:
  static constexpr size_t kTimedSizeMin = 64 << 10;  // smaller tensors come at once, or nearly so

  // A tensor of so many bytes has begun to come, or is there; `bytes` came over the link so far.
  void begin(Instant now, size_t size, uint64_t bytes) {
    if (size < kTimedSizeMin) return;
    if (under_way_++ == 0) mark_ = now, bytes_at_mark_ = bytes;
  }
  void end(Instant now, size_t size, uint64_t bytes) {
    if (size < kTimedSizeMin || under_way_ == 0) return;
    --under_way_;
    const uint64_t came = bytes - bytes_at_mark_;
    if (came < kTimedSizeMin) return;  // two ended together: that stretch is part of the next one
    const double took = std::max(seconds(now - mark_), 1e-6);
    use_.bytes_timed += came;
    use_.seconds_timed += took;
    use_.fastest_bytes_per_second = std::max(use_.fastest_bytes_per_second, static_cast<double>(came) / took);
    mark_ = now, bytes_at_mark_ = bytes;
  }
  // What is under way now says nothing: it waited here because nobody read, or does not come to its end.
  void drop() { under_way_ = 0; }

  // Since the last call: the timed part of it alone.
  proto::LinkUse take() { return std::exchange(use_, {}); }

 private:
  uint32_t under_way_ = 0;
  Instant mark_{};
  uint64_t bytes_at_mark_ = 0;
  proto::LinkUse use_{};
};

}  // namespace weft::peer
