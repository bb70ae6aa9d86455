#include "cli/live_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>

namespace weft::cli {
namespace {

constexpr size_t kColumnsUnknown = 80;

// The last column stays free: writing there makes some terminals go to the next row.
size_t columns_of(std::FILE* out) {
  winsize size{};
  const bool known = ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return (known ? size.ws_col : kColumnsUnknown) - 1;
}

bool can_rewrite(std::FILE* out) {
  const char* kind = std::getenv("TERM");
  return isatty(fileno(out)) == 1 && (kind == nullptr || std::string_view(kind) != "dumb");
}

// One character of UTF-8, or one byte that is none.
struct Character {
  size_t size = 1;
  uint32_t code = 0xFFFD;
  // Scripts whose characters take two columns begin at Hangul. Two for some that take one leaves room unused.
  size_t columns() const { return code >= 0x1100 && code != 0xFFFD ? 2 : 1; }
  bool is_control() const { return code < 0x20 || (code >= 0x7F && code < 0xA0); }
};
Character first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {1, byte(0)};
  const size_t size = byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < size) return {};
  uint32_t code = byte(0) & (0x7Fu >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  return {size, code};
}

size_t columns_of(std::string_view text) {
  size_t columns = 0;
  for (size_t i = 0; i < text.size();) {
    const Character next = first_of(text.substr(i));
    columns += next.columns();
    i += next.size;
  }
  return columns;
}

std::string cut(std::string_view text, size_t columns) {
  size_t end = 0;
  for (size_t taken = 0; end < text.size();) {
    const Character next = first_of(text.substr(end));
    taken += next.columns();
    if (taken > columns) break;
    end += next.size;
  }
  return std::string(text.substr(0, end));
}

}  // namespace

std::string printable(std::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    const Character next = first_of(text.substr(i));
    if (next.is_control() || (next.size == 1 && next.code == 0xFFFD))
      clean += next.code == '\t' ? ' ' : '?';
    else
      clean += text.substr(i, next.size);
    i += next.size;
  }
  return clean;
}

std::string fit(const std::vector<std::string>& parts, size_t columns) {
  std::string line;
  for (const std::string& part : parts) {
    if (part.empty()) continue;
    const std::string text = printable(part);
    if (!line.empty() && columns_of(line) + 2 + columns_of(text) > columns) break;
    line += line.empty() ? cut(text, columns) : "  " + text;
  }
  return line;
}

LiveLine::LiveLine(std::FILE* out) : out_(out), terminal_(can_rewrite(out)) {}

void LiveLine::put(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void LiveLine::write_line(std::string_view text) {
  const std::string line = terminal_ ? printable(text) : std::string(text);
  put(shown_.empty() ? line + "\n" : "\r" + line + "\033[K\n" + shown_ + "\033[K");
}

void LiveLine::rewrite(const std::vector<std::string>& parts) {
  const std::string text = fit(parts, columns_of(out_));
  if (text == shown_) return;
  put("\r" + text + "\033[K");
  shown_ = text;
}

void LiveLine::end() {
  if (!shown_.empty()) put("\n");
  shown_.clear();
}

}  // namespace weft::cli
