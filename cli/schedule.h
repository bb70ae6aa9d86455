// The hours in which a machine's owner lets it work, in the civil time of where it stands: "22:00-07:00".
//
//   schedule = range *( "," range )
//   range    = [ day [ "-" day ] " " ] time "-" time
//   day      = "mon" | "tue" | "wed" | "thu" | "fri" | "sat" | "sun"
//   time     = HH ":" MM                                   ; 24:00 only at the end
//
// A range without days holds on every day. One that does not end after it begins ends on the next day, and
// belongs to the day on which it begins: "fri 22:00-07:00" is over on Saturday morning. Pure: civil time is
// handed in, so that an hour which summer time takes away or repeats is what a clock on the wall makes of it.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::cli {

struct CivilTime {
  int weekday = 0;  // from Monday, 0 to 6
  int minute = 0;   // of the day, 0 to 1439
};
// "mon 07:00"
std::string to_string(const CivilTime& time);
// Of this machine's time zone, as it is set now.
CivilTime civil_time(int64_t unix_seconds);

class Schedule {
 public:
  // InvalidArgument says what is wrong and how it is written.
  static Result<Schedule> parse(std::string_view text);

  bool is_open(const CivilTime& time) const { return open_[index_of(time)]; }
  // When that changes next; nothing: never.
  std::optional<CivilTime> next_change(const CivilTime& time) const;

 private:
  static constexpr int kDay = 24 * 60, kWeek = 7 * kDay;
  static size_t index_of(const CivilTime& time) {
    return static_cast<size_t>(time.weekday) * kDay + static_cast<size_t>(time.minute);
  }
  Status add(std::string_view range);
  std::bitset<kWeek> open_;  // by minute of the week
};

}  // namespace weft::cli
