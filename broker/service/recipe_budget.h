// How much of the broker's own weights is read to make what users name by recipes: no user has its disk read
// all day, nor holds others up for long.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>

#include "base/digest.h"
#include "base/units.h"

namespace weft::broker {

class RecipeBudget {
 public:
  static constexpr uint64_t kDayMax = uint64_t{1} << 40;      // bytes of sources, for one key in a day
  static constexpr uint64_t kRequestMax = uint64_t{4} << 30;  // likewise of a request, beyond its first

  void begin_request() { request_ = 0; }
  // Whether so many bytes may be read for it; then they are counted.
  bool take(const PeerId& key, uint64_t size, Instant now) {
    if (request_ > 0 && size > kRequestMax - std::min(request_, kRequestMax)) return false;
    std::erase_if(read_, [&](const auto& entry) { return now - entry.second.since >= kDay; });
    Read& read = read_.try_emplace(key, Read{now, 0}).first->second;
    if (size > kDayMax - read.bytes) return false;
    read.bytes += size;
    request_ += size;
    return true;
  }

 private:
  static constexpr Duration kDay = std::chrono::hours(24);
  struct Read {
    Instant since{};
    uint64_t bytes = 0;
  };
  std::map<PeerId, Read> read_;  // of a day: of as many keys as are let in
  uint64_t request_ = 0;
};

}  // namespace weft::broker
