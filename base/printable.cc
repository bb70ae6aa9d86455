#include "base/printable.h"

#include <cstddef>

namespace weft {

namespace {

struct CodePoint {
  char32_t value = 0;
  size_t size = 0;  // bytes; 0: no UTF-8
};

// The Unicode Standard, table 3-7: neither overlong nor a surrogate nor beyond U+10FFFF.
CodePoint first_of(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {lead, 1};
  const size_t size = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < size) return {};
  char32_t value = lead & (0xff >> (size + 1));
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    value = value << 6 | (byte(i) & 0x3f);
  }
  constexpr char32_t kSmallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < kSmallest[size] || value > 0x10ffff || (value >= 0xd800 && value <= 0xdfff)) return {};
  return {value, size};
}

bool is_printable(char32_t c, Lines lines) {
  if (c == '\n' || c == '\t') return lines == Lines::Many;
  if (c < 0x20 || (c >= 0x7f && c < 0xa0)) return false;
  const bool separates = c == 0x2028 || c == 0x2029;
  const bool turns = c == 0x061c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
                     (c >= 0x2066 && c <= 0x2069);
  return !separates && !turns;
}

}  // namespace

std::string printable(std::string_view text, Lines lines) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const CodePoint point = first_of(text);
    const size_t size = point.size == 0 ? 1 : point.size;
    if (point.size > 0 && is_printable(point.value, lines))
      out.append(text.substr(0, size));
    else
      out += '?';
    text.remove_prefix(size);
  }
  return out;
}

}  // namespace weft
