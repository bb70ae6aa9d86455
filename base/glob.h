// Patterns of names, as job files have them.
#pragma once

#include <string_view>

namespace weft {

// Whether `text` matches `pattern`, where * stands for any run of characters and ? for one. Linear in
// practice, at worst the product of the lengths.
bool matches_glob(std::string_view pattern, std::string_view text);

}  // namespace weft
