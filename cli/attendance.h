// Whether a peer is to work now: within its owner's hours, and not while its owner has paused it. Pure: time
// is handed in. The clock of a pause goes on while the machine sleeps.
#pragma once

#include <optional>
#include <string>

#include "base/units.h"
#include "cli/schedule.h"

namespace weft::cli {

class Attendance {
 public:
  struct Now {
    Instant clock{};
    CivilTime civil{};
  };
  explicit Attendance(const std::optional<Schedule>& hours = {}) : hours_(hours) {}

  void pause(std::optional<Duration> length, Instant now);  // without a length until resume()
  bool resume(Instant now);                                 // false: it was not paused

  bool is_open(const Now& now) const { return !is_paused(now.clock) && is_in_hours(now.civil); }
  // "paused for 1h 10m more", "outside of its hours until mon 22:00", "at work until mon 07:00", "at work"
  std::string describe(const Now& now) const;

 private:
  bool is_paused(Instant now) const { return is_paused_ && (!until_ || now < *until_); }
  bool is_in_hours(const CivilTime& time) const { return !hours_ || hours_->is_open(time); }

  std::optional<Schedule> hours_;
  bool is_paused_ = false;
  std::optional<Instant> until_;
};

}  // namespace weft::cli
