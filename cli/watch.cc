#include "cli/watch.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "cli/exit_codes.h"
#include "cli/follow.h"
#include "cli/live_line.h"

namespace weft::cli {
namespace {

constexpr Duration kEvery = std::chrono::seconds(2);

struct Room {
  size_t rows = 24, columns = 80;
};
Room room_of(std::FILE* out) {
  winsize size{};
  if (ioctl(fileno(out), TIOCGWINSZ, &size) != 0 || size.ws_row < 2 || size.ws_col < 2) return {};
  return {size.ws_row, size.ws_col};
}

}  // namespace

Screen::Screen(std::FILE* out) : out_(out), terminal_(LiveLine(out).is_live()) {}

bool Screen::is_unread() const { return std::ferror(out_) != 0; }

void Screen::show(const std::vector<std::string>& lines) {
  if (terminal_) return redraw(lines);
  if (lines == shown_) return;
  std::string text = begun_ ? "\n" : "";
  for (const std::string& line : lines) text += line + "\n";
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
  shown_ = lines;
  begun_ = true;
}

// In one write, so that nothing flickers; the last row stays free for what else is said.
void Screen::redraw(const std::vector<std::string>& lines) {
  const Room room = room_of(out_);
  std::string text = begun_ ? "\033[H" : "\033[H\033[2J";
  const size_t fits = std::min(lines.size(), room.rows - 1);
  for (size_t i = 0; i < fits; ++i) {
    const bool is_cut = i + 1 == fits && fits < lines.size();
    text += fit({is_cut ? "... and " + std::to_string(lines.size() - i) + " lines more" : lines[i]},
                room.columns - 1) +
            "\033[K\n";
  }
  text += "\033[J";
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
  begun_ = true;
}

Result<int> watch(BrokerCall& session, const std::function<Result<bool>(Client&)>& look) {
  BrokerAccess& access = *session.access;
  for (;;) {
    if (!session.client || session.client->lost()) {
      session.client.reset();
      auto client = reconnect(access);
      if (!client && client.error().code == ErrorCode::Cancelled) return kExitOk;
      WEFT_TRY(session.client, std::move(client));
    }
    const Result<bool> is_last = look(*session.client);
    if (access.interrupted()) return kExitOk;
    if (!is_last && !session.client->lost()) return fail(is_last.error());
    if (is_last && *is_last) return kExitOk;
    access.pause(kEvery);
    if (access.interrupted()) return kExitOk;
  }
}

}  // namespace weft::cli
