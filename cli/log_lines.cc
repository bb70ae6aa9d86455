#include "cli/log_lines.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "base/printable.h"
#include "cli/json_event.h"
#include "cli/report.h"
#include "cli/say.h"

namespace weft::cli {

namespace {

constexpr size_t kEventsMax = 1000;  // words of our own: a hundred or so

// "level event ..." -> "event".
std::string_view event_of(std::string_view line) {
  const size_t begin = std::min(line.size(), line.find(' ') + 1);
  return line.substr(begin, line.find(' ', begin) - begin);
}

Instant monotonic() {
  return Instant(std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now().time_since_epoch()));
}

// "level event rest" as an object.
std::string event_of_json(const std::string& line) {
  const size_t level = std::min(line.size(), line.find(' '));
  const std::string_view what = event_of(line);
  const size_t rest = std::min(line.size(), level + 1 + what.size() + 1);
  return fmt::format(R"({{"event":"log","level":{},"what":{},"text":{}}})",
                     json_string(line.substr(0, level)), json_string(what), json_string(line.substr(rest)));
}

}  // namespace

LogLines::LogLines()
    : LogLines(
          [is_journal = writes_to_journal(STDERR_FILENO)](const std::string& line) {
            say(stderr, "{}{}\n", is_journal ? "" : utc_time(unix_ms_now()) + " ", line);
          },
          monotonic) {}

std::shared_ptr<LogLines> LogLines::of_json() {
  return std::make_shared<LogLines>(
      [](const std::string& line) {
        say(stdout, "{}\n", stamped(event_of_json(line), unix_ms_now()));
        std::fflush(stdout);
      },
      monotonic);
}

// JOURNAL_STREAM names the device and inode of the journal's stream. A terminal that systemd's user manager
// started has the variable, too, but other streams.
bool writes_to_journal(int descriptor) {
  const char* stream = std::getenv("JOURNAL_STREAM");
  struct stat status {};
  return stream != nullptr && ::fstat(descriptor, &status) == 0 &&
         fmt::format("{}:{}", status.st_dev, status.st_ino) == stream;
}

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
