// A number among the words of a bench's command line.
#pragma once

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace weft::bench {

// Ends the program where `word` is no such number: a bench that goes on with another measures what nobody
// asked.
template <typename T>
T number_of(std::string_view word) {
  T number{};
  const auto [end, code] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (code == std::errc() && end == word.data() + word.size()) return number;
  std::fprintf(stderr, "'%.*s' is no number that this can take\n", static_cast<int>(word.size()),
               word.data());
  std::exit(2);
}

}  // namespace weft::bench
