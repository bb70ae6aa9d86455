// How far a mistyped word is from the one that was meant.
#pragma once

#include <cstddef>
#include <string_view>

namespace weft {

// How many letters have to be put in, taken away or changed, or neighbours to be swapped, to get from one to
// the other. Takes a.size() * b.size() steps: for words, not for texts.
size_t typing_distance(std::string_view a, std::string_view b);

}  // namespace weft
