// How fast bytes come, while they do: how many more to ask for, and when enough is known. What comes first is
// left out, for a sender begins slowly. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/units.h"

namespace weft::peer {

class ProbeMeter {
 public:
  struct Limits {
    uint64_t bytes_max = 16 << 20;
    Duration time_max = std::chrono::milliseconds(1200);
    Duration round_trip{};  // the least that was seen
  };
  ProbeMeter(const Limits& limits, Instant now);

  // Bytes the other side may have sent, all together: so much ahead of what came that the link never rests,
  // and little more, for it has to pass before anything else does.
  uint64_t asked() const { return asked_; }
  void on_bytes(uint64_t size, Instant now);
  uint64_t received() const { return received_; }
  bool is_done(Instant now) const;
  Instant deadline() const { return began_ + limits_.time_max; }
  // Of what came after the beginning; 0: nothing did.
  double bytes_per_second() const;

 private:
  struct Arrival {
    Instant at{};
    uint64_t received = 0;  // with it
  };
  void end_epoch(Instant now);
  size_t first_counted() const;  // of arrivals_
  double rate_between(size_t first, size_t last) const;

  const Limits limits_;
  const Instant began_;
  uint64_t received_ = 0, window_, asked_;
  // An epoch is the time in which one window comes.
  Instant epoch_began_;
  uint64_t epoch_from_ = 0;
  double best_ = 0;
  std::optional<size_t> steady_{};  // the arrival since which the rate has not risen
  std::vector<Arrival> arrivals_{};
};

}  // namespace weft::peer
