#include "text/blanks.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/unicode_ages.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

bool is_blank(char32_t code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

// Alphabetic, though symbols: letters in circles and squares.
bool is_enclosed_letter(char32_t code) {
  return (code >= 0x24B6 && code <= 0x24E9) || (code >= 0x1F130 && code <= 0x1F149) ||
         (code >= 0x1F150 && code <= 0x1F169) || (code >= 0x1F170 && code <= 0x1F189);
}

// Letters, marks and digits that are younger than utf8proc's Unicode.
bool is_young_word(char32_t code) {
  const auto ranges = characters_since_unicode_14();
  const auto found = std::partition_point(ranges.begin(), ranges.end(),
                                          [&](const CategoryRange& range) { return range.last < code; });
  if (found == ranges.end() || found->first > code) return false;
  const std::string_view category = found->category;
  return category[0] == 'L' || category[0] == 'M' || category == "Nd";
}

bool is_word(char32_t code) {
  if (is_young_word(code)) return true;
  if (is_enclosed_letter(code) || code == 0x200C || code == 0x200D) return true;  // the last two join
  switch (utf8proc_category(static_cast<int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

// REQUIRES: not empty.
Character character_at_end(std::string_view text) {
  size_t size = 1;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  while (size < 4 && size < text.size() && continues(text[text.size() - size])) ++size;
  const Character character = first_character(text.substr(text.size() - size));
  return character.size == size ? character : Character{};
}

}  // namespace

size_t leading_blanks(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Character character = first_character(text.substr(at));
    if (!is_blank(character.code)) break;
    at += character.size;
  }
  return at;
}

size_t trailing_blanks(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const Character character = character_at_end(text.substr(0, end));
    if (!is_blank(character.code)) break;
    end -= character.size;
  }
  return text.size() - end;
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && first_character(text).is_valid && is_word(first_character(text).code);
}
bool ends_with_word(std::string_view text) {
  return !text.empty() && character_at_end(text).is_valid && is_word(character_at_end(text).code);
}

}  // namespace weft::text
