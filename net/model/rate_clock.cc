#include "net/model/rate_clock.h"

#include <algorithm>
#include <cmath>

namespace weft::net {

namespace {

__extension__ using Wide = unsigned __int128;

constexpr double kBytesPerSecondMax = 1e15;
constexpr Duration kYear = std::chrono::hours(24 * 365);  // nothing waits longer, so that no sum overflows

}  // namespace

RateClock::RateClock(double bytes_per_second, Duration burst) : burst_(burst) { set_rate(bytes_per_second); }

void RateClock::set_rate(double bytes_per_second) {
  bits_per_second_ = rest_ = 0;
  if (!(bytes_per_second > 0) || bytes_per_second > kBytesPerSecondMax) return;
  bits_per_second_ = std::max<uint64_t>(1, static_cast<uint64_t>(std::llround(bytes_per_second * 8)));
}

Instant RateClock::pass(uint64_t size, Instant at) {
  if (!is_limited()) return at;
  const Instant from = free_ == Instant::min() ? at : at - burst_;
  if (free_ < from) {
    free_ = from;
    rest_ = 0;
  }
  const Wide work = Wide{size} * 8'000'000'000 + rest_;
  const Wide taken = work / bits_per_second_;
  rest_ = static_cast<uint64_t>(work % bits_per_second_);
  const auto year = static_cast<Wide>(kYear.count());
  free_ = std::min(free_ + Duration(static_cast<int64_t>(std::min(taken, year))), at + kYear);
  return std::max(free_, at);
}

Duration RateClock::time_of(uint64_t size) const {
  if (!is_limited()) return {};
  const auto year = static_cast<Wide>(kYear.count());
  return Duration(static_cast<int64_t>(std::min(Wide{size} * 8'000'000'000 / bits_per_second_, year)));
}

}  // namespace weft::net
