// A virtual clock: what is to happen when, in order of time, and of what happens at once in the order in
// which it was asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "base/units.h"

namespace weft::bench {

class Clock {
 public:
  Instant now() const { return now_; }
  void at(Instant when, std::function<void()> what) {
    events_.push({std::max(when, now_), next_++, std::move(what)});
  }
  // Everything that happens at the next time that something does. False: nothing ever will.
  bool advance() {
    if (events_.empty()) return false;
    now_ = events_.top().when;
    while (!events_.empty() && events_.top().when == now_) {
      auto what = std::move(const_cast<Event&>(events_.top()).what);
      events_.pop();
      what();
    }
    return true;
  }

 private:
  struct Event {
    Instant when;
    uint64_t number;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : number > other.number;
    }
  };
  Instant now_{};
  uint64_t next_ = 0;
  std::priority_queue<Event> events_;
};

}  // namespace weft::bench
