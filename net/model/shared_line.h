// A line that several flows share. Each gets an equal part while it has bytes waiting, what one leaves goes
// to the others, and the line does not rest while anything waits (start-time fair queueing: Goyal, Vin and
// Cheng, "Start-time fair queuing", SIGCOMM 1996). Pure: what has passed by some time is worked out when
// somebody asks, so that nobody who asks late takes anything from the others or from the rate.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "net/model/rate_clock.h"

namespace weft::net {

class SharedLine {
 public:
  using Flow = uint32_t;
  struct Passed {
    size_t size = 0;
    Instant at{};  // its last byte
  };

  // REQUIRES: a rate above 0.
  explicit SharedLine(double bytes_per_second);

  // Of what has not begun to pass. REQUIRES: above 0.
  void set_rate(double bytes_per_second);

  Flow add();
  void remove(Flow flow);  // what waits goes nowhere
  // Bytes begin to wait at `at`, which may lie ahead. REQUIRES: within a flow it does not go backwards.
  void enter(Flow flow, size_t size, Instant at);
  // What began to pass by `now` and was not taken before, in order.
  std::vector<Passed> take(Flow flow, Instant now);
  // When more than was taken will have passed, if nothing else comes; nothing: there is no more. It may be
  // later when others come, and earlier when others leave.
  std::optional<Instant> next(Flow flow) const;

 private:
  struct Waiting {
    size_t size;
    Instant at;
  };
  struct Queue {
    std::deque<Waiting> waiting{};
    std::vector<Passed> passed{};
    // In bytes that each flow has been served: where the next piece begins, once it stands in line, and where
    // the last one ended.
    std::optional<uint64_t> start{};
    uint64_t end = 0;
  };
  size_t piece_of(const Queue& queue) const { return std::min(queue.waiting.front().size, piece_max_); }
  uint64_t start_of(const Queue& queue) const { return queue.start.value_or(std::max(served_, queue.end)); }
  void advance(Instant now);
  Queue* choose(Instant begin);
  void serve(Queue& queue, Instant begin);

  RateClock clock_;
  size_t piece_max_ = 0;
  std::map<Flow, Queue> queues_;
  Flow next_flow_ = 0;
  uint64_t served_ = 0;  // where the piece that was served last began
};

}  // namespace weft::net
