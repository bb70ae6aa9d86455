// Whose turn it is to send something large. A large frame that has begun waits, with its first bytes, until
// there is room for the others: each connection may keep to what one may do, and all of them together be too
// much. Those that are urgent go first, each kind in the order in which it came. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "base/units.h"
#include "broker/events.h"

namespace weft::broker {

class Arrivals {
 public:
  struct Options {
    size_t max = 32 << 20;  // bytes: of those that come, and of whatever else takes of the same room
    // While others wait, a frame that has begun gets `deadline` plus its size at `bytes_per_second`. While an
    // urgent frame waits, one that is not urgent gets `deadline` only.
    Duration deadline = std::chrono::seconds(10);
    int64_t bytes_per_second = 125'000;
  };
  explicit Arrivals(const Options& options) : options_(options) {}

  // A frame of so many bytes has begun, and waits; one of more than `max` for all others. REQUIRES: the
  // connection has no other.
  void begin(ConnectionId connection, size_t size, bool is_urgent);
  // It has come, or its connection is gone. False: there was none.
  bool end(ConnectionId connection);
  bool waits(ConnectionId connection) const;

  // Those that wait no longer, for there is room, while `in_use` bytes are taken by what has come before.
  std::vector<ConnectionId> let_in(Instant now, size_t in_use);
  // Those that take too long over it, while others wait.
  std::vector<ConnectionId> late(Instant now) const;

 private:
  struct Arrival {
    size_t size = 0;
    bool is_urgent = false;
    std::optional<Instant> since{};  // nothing: it waits
  };

  Options options_;
  std::map<ConnectionId, Arrival> all_;
  std::deque<ConnectionId> urgent_, others_;  // that wait
  size_t bytes_ = 0;                          // of those that come
};

}  // namespace weft::broker
