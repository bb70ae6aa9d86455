// Hugging Face's library has Unicode in two versions, and the distribution's libraries have others. What
// differs stands here, so that the same text becomes the same tokens. Of the Unicode Character Database, 9.0
// to 16.0.
#pragma once

#include <span>

namespace weft::text {

struct CategoryRange {
  char32_t first, last;
  char category[3];  // the general category: "Lo"
};
// What Unicode 15 and 16 added: Oniguruma 6.9.10, which splits there, knows it, PCRE2 10.42 does not. By code
// point.
std::span<const CategoryRange> characters_since_unicode_14();

// Characters of Unicode 10 and later that normalization would move, decompose or compose: the library
// normalizes by Unicode 9, to which they are nothing but starters.
bool is_young_for_normalization(char32_t code);

}  // namespace weft::text
