// Texts that came from elsewhere, made fit for a log and a terminal.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

enum class Lines : uint8_t { One, Many };

// What could end a line, move a cursor or turn the direction of writing becomes '?': control characters (also
// those of U+0080 to U+009F), line and paragraph separators, marks and overrides of direction, and bytes that
// are no UTF-8. Of Lines::Many line feeds and tabs stay. Everything else stays as it is.
std::string printable(std::string_view text, Lines lines = Lines::One);

}  // namespace weft
