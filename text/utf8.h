// UTF-8, character by character, of bytes that may be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace weft::text {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD
inline constexpr std::string_view kBlankMark = "\xE2\x96\x81";             // U+2581, SentencePiece's blank

struct Character {
  char32_t code = 0xFFFD;
  uint8_t size = 1;  // bytes
  bool is_valid = false;
};

// The first character. What is no character is as long as Unicode recommends to replace by one U+FFFD: the
// longest part that could begin one ("maximal subpart", chapter 3.9). REQUIRES: `text` is not empty.
Character first_character(std::string_view text);

// The bytes at the front that are whole characters.
size_t valid_prefix(std::string_view text);

// The bytes at the end that begin a character which more bytes could complete: 0 to 3.
size_t unfinished_suffix(std::string_view text);

// REQUIRES: `code` is a scalar value of Unicode.
void append_character(std::string& text, char32_t code);

// The text with U+FFFD for what is no character.
std::string replace_invalid(std::string_view text);

}  // namespace weft::text
