// The link emulator, in this process, beneath TLS: for each direction of a connection a rate, a delay, jitter
// and loss; and for the process one uplink and one downlink that all its connections share. No privilege is
// needed, and what is drawn at random comes from the seed.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "net/model/link_model.h"
#include "net/model/shared_line.h"

namespace weft::net {

// One direction of what joins this process to all others. Any thread; nobody waits for another's bytes, each
// is told when its own have passed.
class AccessLine {
 public:
  // Null: not limited.
  static std::shared_ptr<AccessLine> make(double bytes_per_second);
  explicit AccessLine(double bytes_per_second) : rate_(bytes_per_second), line_(bytes_per_second) {}

  double bytes_per_second() const { return rate_; }
  // From now on. REQUIRES: a rate that make() does not take for no limit.
  void set_rate(double bytes_per_second);

  // As in SharedLine.
  SharedLine::Flow add();
  void remove(SharedLine::Flow flow);
  void enter(SharedLine::Flow flow, size_t size, Instant at);
  std::vector<SharedLine::Passed> take(SharedLine::Flow flow, Instant now);
  std::optional<Instant> next(SharedLine::Flow flow) const;

 private:
  std::atomic<double> rate_;
  mutable Mutex mutex_;
  SharedLine line_ WEFT_GUARDED_BY(mutex_);
};

// Of one connection, seen from this side.
struct Shape {
  ShapeDirection send{}, receive{};
  uint64_t seed = 0;
  std::shared_ptr<AccessLine> uplink{}, downlink{};  // of this process; null: not limited
};

}  // namespace weft::net
