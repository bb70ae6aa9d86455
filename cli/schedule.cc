#include "cli/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

namespace weft::cli {
namespace {

constexpr std::string_view kDays[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun"};
constexpr size_t kTextMax = 1024;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

std::optional<int> day_of(std::string_view text) {
  for (int day = 0; day < 7; ++day)
    if (text == kDays[day]) return day;
  return std::nullopt;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Minutes of the day.
std::optional<int> time_of(std::string_view text) {
  if (text.size() != 5 || text[2] != ':') return std::nullopt;
  for (const size_t at : {0, 1, 3, 4})
    if (!is_digit(text[at])) return std::nullopt;
  const int hour = (text[0] - '0') * 10 + text[1] - '0', minute = (text[3] - '0') * 10 + text[4] - '0';
  if (hour > 24 || minute > 59 || (hour == 24 && minute > 0)) return std::nullopt;
  return hour * 60 + minute;
}

tl::unexpected<Error> invalid(std::string_view range, std::string_view why) {
  return fail(
      ErrorCode::InvalidArgument,
      fmt::format("--schedule: '{}': {}; write 22:00-07:00, or mon-fri 22:00-07:00, sat-sun 00:00-24:00",
                  range.substr(0, 80), why));
}

}  // namespace

std::string to_string(const CivilTime& time) {
  return fmt::format("{} {:02}:{:02}", kDays[time.weekday], time.minute / 60, time.minute % 60);
}

CivilTime civil_time(int64_t unix_seconds) {
  const std::time_t time = unix_seconds;
  std::tm parts{};
  ::tzset();  // it may have been changed
  ::localtime_r(&time, &parts);
  return {.weekday = (parts.tm_wday + 6) % 7, .minute = parts.tm_hour * 60 + parts.tm_min};
}

Result<Schedule> Schedule::parse(std::string_view text) {
  if (text.size() > kTextMax) return invalid(text, "too long");
  Schedule schedule;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    WEFT_TRY_STATUS(schedule.add(trimmed(text.substr(begin, end - begin))));
    begin = end + 1;
  }
  return schedule;
}

Status Schedule::add(std::string_view range) {
  int first = 0, last = 6;
  std::string_view times = range;
  if (const size_t space = range.rfind(' '); space != std::string_view::npos) {
    const std::string_view days = trimmed(range.substr(0, space));
    times = range.substr(space + 1);
    const size_t dash = std::min(days.find('-'), days.size());
    const auto from = day_of(days.substr(0, dash));
    const auto to = dash == days.size() ? from : day_of(days.substr(dash + 1));
    if (!from || !to) return invalid(range, "its days are none of mon, tue, wed, thu, fri, sat, sun");
    first = *from;
    last = *to;
  }
  const size_t dash = times.find('-');
  if (dash == std::string_view::npos) return invalid(range, "it is no range of times");
  const auto from = time_of(times.substr(0, dash)), to = time_of(times.substr(dash + 1));
  if (!from || !to || *from == kDay)
    return invalid(range, "its times are not 00:00 to 23:59, or 24:00 at the end");
  if (*from == *to) return invalid(range, "it begins when it ends; the whole day is 00:00-24:00");
  const int length = *to > *from ? *to - *from : *to + kDay - *from;
  for (int day = first;; day = (day + 1) % 7) {
    for (int minute = 0; minute < length; ++minute)
      open_.set(static_cast<size_t>((day * kDay + *from + minute) % kWeek));
    if (day == last) return {};
  }
}

std::optional<CivilTime> Schedule::next_change(const CivilTime& time) const {
  const size_t now = index_of(time);
  for (size_t ahead = 1; ahead < kWeek; ++ahead) {
    const size_t at = (now + ahead) % kWeek;
    if (open_[at] != open_[now]) return CivilTime{static_cast<int>(at) / kDay, static_cast<int>(at) % kDay};
  }
  return std::nullopt;
}

}  // namespace weft::cli
