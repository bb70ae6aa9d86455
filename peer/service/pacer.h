// When the next bytes may go, so that no more than a rate goes in the mean. The rate may change while bytes
// wait: what went last is paid for at the rate of now.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/units.h"
#include "plan/copies.h"

namespace weft::peer {

class Pacer {
 public:
  // Until they may, at `rate` bytes a second; zero: now.
  Duration wait(Instant now, uint64_t rate) const {
    const Instant next = carried(rate);
    return next > now + kAhead ? next - now - kAhead : Duration{};
  }
  // They go now.
  void take(Instant now, uint64_t bytes, uint64_t rate) {
    begin_ = std::max(now - kBehind, carried(rate));
    bytes_ = bytes;
  }

 private:
  static constexpr Duration kAhead = std::chrono::milliseconds(20);  // small pieces need no timer each
  static constexpr Duration kBehind =
      std::chrono::milliseconds(100);  // made up for, of a timer that came late
  Instant carried(uint64_t rate) const {
    const double seconds = static_cast<double>(bytes_) / static_cast<double>(rate);
    return begin_ + Duration(static_cast<Duration::rep>(1e9 * seconds));
  }

  Instant begin_{};  // when what went last began to be carried
  uint64_t bytes_ = 0;
};

// The same for copies of the state, which give way to tensors on the same uplink. They go in bursts, each
// when the one before has left this machine; while tensors wait, at a part of the rate and for that part of
// the time (plan::kCopiesYield), for how much a line carries is not always known.
class CopyPacer {
 public:
  struct Line {
    size_t unsent = 0;    // bytes of copies that have not left
    bool urgent = false;  // tensors wait
  };
  // At most kLookAgain: by then the line may be free.
  Duration wait(Instant now, uint64_t rate, const Line& line) {
    if (burst_ >= burst_max(rate)) {
      if (line.unsent > 0) return kLookAgain;
      burst_ = 0;
      rest_until_ = now + (plan::kCopiesYield - 1) * (now - burst_began_);
    }
    Duration wait = pacer_.wait(now, rate_on(line, rate));
    if (line.urgent) wait = std::max(wait, rest_until_ - now);
    return std::min(wait, kLookAgain);
  }
  // REQUIRES: wait() says now. How much goes, of at most `size` bytes.
  size_t take(Instant now, size_t size, uint64_t rate, const Line& line) {
    size = std::min(size, burst_max(rate) - burst_);
    pacer_.take(now, size, rate_on(line, rate));
    if (burst_ == 0) burst_began_ = now;
    burst_ += size;
    return size;
  }

  static constexpr Duration kLookAgain = std::chrono::milliseconds(2);

 private:
  // A hundredth of a second: what is urgent waits for what was sent before it.
  static size_t burst_max(uint64_t rate) { return std::max<uint64_t>(rate / 100, 4 << 10); }
  static uint64_t rate_on(const Line& line, uint64_t rate) {
    return line.urgent ? std::max<uint64_t>(rate / plan::kCopiesYield, 1) : rate;
  }

  Pacer pacer_;
  size_t burst_ = 0;  // bytes
  Instant burst_began_{}, rest_until_{};
};

}  // namespace weft::peer
