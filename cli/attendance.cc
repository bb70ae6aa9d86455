#include "cli/attendance.h"

#include <algorithm>

#include "cli/quantities.h"

namespace weft::cli {

void Attendance::pause(std::optional<Duration> length, Instant now) {
  is_paused_ = true;
  until_.reset();
  if (length) until_ = now + *length;
}

bool Attendance::resume(Instant now) {
  const bool was_paused = is_paused(now);
  is_paused_ = false;
  return was_paused;
}

std::string Attendance::describe(const Now& now) const {
  if (is_paused(now.clock))
    return until_ ? "paused for " + format_duration(seconds(*until_ - now.clock)) + " more"
                  : "paused until `weft pause --off`";
  const auto change = hours_ ? hours_->next_change(now.civil) : std::nullopt;
  const std::string until = change ? " until " + to_string(*change) : "";
  if (!is_in_hours(now.civil)) return "outside of its hours" + until;
  if (manners_.may_work()) return "at work" + until;
  std::string text = "paused: " + manners_.reason();
  if (const auto ends = manners_.until())
    text += ", goes on in " + format_duration(std::max(0.0, seconds(*ends - now.clock)));
  return text;
}

}  // namespace weft::cli
