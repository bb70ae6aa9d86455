// Whether a peer is to work now: within its owner's hours, not while its owner has paused it, and not while
// its manners forbid it (peer/manners). Pure: time is handed in, and what was read of the machine. The clock
// of a pause goes on while the machine sleeps.
#pragma once

#include <optional>
#include <string>

#include "base/units.h"
#include "cli/schedule.h"
#include "peer/manners/manners.h"

namespace weft::cli {

class Attendance {
 public:
  struct Now {
    Instant clock{};
    CivilTime civil{};
  };
  explicit Attendance(const std::optional<Schedule>& hours = {}, peer::MannersRules rules = {})
      : hours_(hours), manners_(std::move(rules)) {}

  void pause(std::optional<Duration> length, Instant now);  // without a length until resume()
  bool resume(Instant now);                                 // false: it was not paused

  void look(const peer::MannersReadings& readings, Instant now) { manners_.look(readings, now); }

  bool is_open(const Now& now) const {
    return !is_paused(now.clock) && is_in_hours(now.civil) && manners_.may_work();
  }
  // Whether the machine is wanted back at once: its owner's hours and pauses let the work end well.
  bool is_urgent() const { return !manners_.may_work(); }
  const std::string& reason() const { return manners_.reason(); }  // of its manners; empty: none
  // "paused for 1h 10m more", "outside of its hours until mon 22:00", "paused: on battery", "at work until
  // mon 07:00", "at work"
  std::string describe(const Now& now) const;

 private:
  bool is_paused(Instant now) const { return is_paused_ && (!until_ || now < *until_); }
  bool is_in_hours(const CivilTime& time) const { return !hours_ || hours_->is_open(time); }

  std::optional<Schedule> hours_;
  peer::Manners manners_;
  bool is_paused_ = false;
  std::optional<Instant> until_;
};

}  // namespace weft::cli
