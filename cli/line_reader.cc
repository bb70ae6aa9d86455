#include "cli/line_reader.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

namespace weft::cli {

namespace {

constexpr Duration kLong = std::chrono::hours(24);

}  // namespace

bool LineReader::take_line(std::string& line) {
  const size_t end = buffer_.find('\n');
  if (end == buffer_.npos) return false;
  line = buffer_.substr(0, end);
  buffer_.erase(0, end + 1);
  if (line.ends_with('\r')) line.pop_back();
  return true;
}

// Files are always ready, and no loop can wait for them.
bool LineReader::is_ready() const {
  pollfd polled{.fd = descriptor_, .events = POLLIN, .revents = 0};
  return ::poll(&polled, 1, 0) > 0;
}

void LineReader::wait(const std::function<bool()>& stopped) {
  bool ready = false;
  const auto watch = loop_.watch_readable(descriptor_, [&] { ready = true; });
  loop_.run_until(kLong, [&] { return ready || stopped(); });
}

void LineReader::read_some() {
  std::array<char, 4096> bytes;
  const ssize_t size = ::read(descriptor_, bytes.data(), bytes.size());
  if (size > 0)
    buffer_.append(bytes.data(), static_cast<size_t>(size));
  else if (size == 0 || (errno != EINTR && errno != EAGAIN))
    is_at_end_ = true;
}

LineReader::State LineReader::next(std::string& line, const std::function<bool()>& stopped) {
  for (;;) {
    loop_.run_until(Duration::zero(), stopped);  // signals that have come meanwhile
    if (stopped()) return State::Stopped;
    if (take_line(line)) return State::Line;
    if (buffer_.size() > kLineMax) return State::TooLong;
    if (is_at_end_) {
      line = std::exchange(buffer_, {});
      return line.empty() ? State::End : State::Line;
    }
    if (is_ready())
      read_some();
    else
      wait(stopped);
  }
}

}  // namespace weft::cli
