// Which characters are blanks, and which belong to words, for the rules of added tokens and for Strip.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft::text {

// The bytes of blanks (Unicode's White_Space) at the text's begin, and at its end.
size_t leading_blanks(std::string_view text);
size_t trailing_blanks(std::string_view text);

// Whether the first character, or the last, belongs to a word: letters, marks, digits, joining punctuation.
bool begins_with_word(std::string_view text);
bool ends_with_word(std::string_view text);

}  // namespace weft::text
