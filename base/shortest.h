// Numbers as text that reads back as the same double, in the fewest digits.
#pragma once

#include <array>
#include <charconv>
#include <string>

namespace weft {

inline std::string shortest(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

}  // namespace weft
