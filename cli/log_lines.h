// The log of a broker or a peer, on standard error: a line an event, "time level event key=value ...", the
// time left out where systemd's journal writes it down. Much of what it says was said by strangers, so each
// line is one line, of bounded length, and no event fills the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "base/units.h"

namespace weft::cli {

class LogLines {
 public:
  static constexpr size_t kLineMax = 2048;  // bytes; what is longer is cut, and says so
  // Of each event: so many at once, then so many a second. How many were left out is told with the next one.
  static constexpr int kAtOnce = 500, kPerSecond = 10;

  using Write = std::function<void(const std::string& line)>;  // without the line feed
  using Clock = std::function<Instant()>;
  LogLines();  // standard error, the monotonic clock
  // Events of JSON on standard output, {"event":"log","time":"...","level":"info","what":"...","text":"..."}.
  static std::shared_ptr<LogLines> of_json();
  LogLines(Write write, Clock clock);

  void operator()(std::string_view line);  // any thread

 private:
  struct Event {
    double left = kAtOnce;
    Instant since{};
    uint64_t left_out = 0;
  };
  const Write write_;
  const Clock clock_;
  Mutex mutex_;
  std::map<std::string, Event, std::less<>> events_ WEFT_GUARDED_BY(mutex_);  // at most kEventsMax
};

// Whether what is printed there goes to systemd's journal, which keeps it for many to read.
bool writes_to_journal(int descriptor);

}  // namespace weft::cli
