#include "cli/log_lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

#include "base/printable.h"
#include "cli/say.h"

namespace weft::cli {

namespace {

constexpr size_t kEventsMax = 1000;  // words of our own: a hundred or so

// "level event ..." -> "event".
std::string_view event_of(std::string_view line) {
  const size_t begin = std::min(line.size(), line.find(' ') + 1);
  return line.substr(begin, line.find(' ', begin) - begin);
}

}  // namespace

LogLines::LogLines()
    : LogLines([](const std::string& line) { say(stderr, "{}\n", line); },
               [] {
                 return Instant(std::chrono::duration_cast<Duration>(
                     std::chrono::steady_clock::now().time_since_epoch()));
               }) {}

LogLines::LogLines(Write write, Clock clock) : write_(std::move(write)), clock_(std::move(clock)) {}

void LogLines::operator()(std::string_view line) {
  const MutexLock lock(mutex_);
  const std::string_view word = event_of(line);
  const Instant now = clock_();
  auto at = events_.find(word);
  if (at == events_.end()) {
    if (events_.size() >= kEventsMax) return;
    at = events_.emplace(word, Event{.since = now}).first;
  }
  Event& event = at->second;
  event.left = std::min<double>(kAtOnce, event.left + kPerSecond * seconds(now - event.since));
  event.since = now;
  if (event.left < 1) {
    ++event.left_out;
    return;
  }
  event.left -= 1;
  std::string text = printable(line.substr(0, kLineMax));
  if (line.size() > kLineMax) text += fmt::format(" ... ({} bytes)", line.size());
  if (event.left_out > 0) text += fmt::format(" left_out={}", std::exchange(event.left_out, 0));
  write_(text);
}

}  // namespace weft::cli
