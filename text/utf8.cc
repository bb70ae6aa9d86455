#include "text/utf8.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::text {
namespace {

struct Lead {
  uint8_t size;        // of the whole character; 0: begins none
  uint8_t second_min;  // the second byte's bounds rule out surrogates, too long forms, and what is too large
  uint8_t second_max;
};
constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}
uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

// How many bytes of a character stand at the front, of how many.
struct Extent {
  uint8_t found, size;
};
Extent extent_of(std::string_view text) {
  const Lead lead = lead_of(byte_at(text, 0));
  if (lead.size <= 1) return {lead.size, lead.size};
  uint8_t found = 1;
  while (found < lead.size && found < text.size()) {
    const uint8_t low = found == 1 ? lead.second_min : 0x80, high = found == 1 ? lead.second_max : 0xBF;
    if (byte_at(text, found) < low || byte_at(text, found) > high) break;
    ++found;
  }
  return {found, lead.size};
}

// ASCII is passed over eight bytes at a time.
size_t ascii_prefix(std::string_view text) {
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if ((word & 0x8080808080808080u) != 0) break;
  }
  while (at < text.size() && byte_at(text, at) < 0x80) ++at;
  return at;
}

}  // namespace

Character first_character(std::string_view text) {
  const Extent extent = extent_of(text);
  if (extent.size == 0 || extent.found < extent.size)
    return {0xFFFD, std::max<uint8_t>(extent.found, 1), false};
  constexpr std::array<uint8_t, 5> kLeadBits = {0, 0x7F, 0x1F, 0x0F, 0x07};
  char32_t code = byte_at(text, 0) & kLeadBits[extent.size];
  for (size_t i = 1; i < extent.size; ++i) code = code << 6 | (byte_at(text, i) & 0x3Fu);
  return {code, extent.size, true};
}

size_t valid_prefix(std::string_view text) {
  size_t at = 0;
  while (true) {
    at += ascii_prefix(text.substr(at));
    if (at == text.size()) return at;
    const Extent extent = extent_of(text.substr(at));
    if (extent.size == 0 || extent.found < extent.size) return at;
    at += extent.size;
  }
}

size_t unfinished_suffix(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(3, text.size()); ++size) {
    const std::string_view suffix = text.substr(text.size() - size);
    if (lead_of(byte_at(suffix, 0)).size == 0) continue;  // a byte within a character, or none of any
    const Extent extent = extent_of(suffix);
    return extent.found == size && extent.found < extent.size ? size : 0;
  }
  return 0;
}

void append_character(std::string& text, char32_t code) {
  const auto tail = [&](int shift) { text += static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text += static_cast<char>(code);
  } else if (code < 0x800) {
    text += static_cast<char>(0xC0 | code >> 6);
    tail(0);
  } else if (code < 0x10000) {
    text += static_cast<char>(0xE0 | code >> 12);
    tail(6);
    tail(0);
  } else {
    text += static_cast<char>(0xF0 | code >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

std::string replace_invalid(std::string_view text) {
  std::string replaced;
  while (!text.empty()) {
    const size_t valid = valid_prefix(text);
    replaced += text.substr(0, valid);
    text.remove_prefix(valid);
    if (text.empty()) break;
    replaced += kReplacementCharacter;
    text.remove_prefix(first_character(text).size);
  }
  return replaced;
}

}  // namespace weft::text
