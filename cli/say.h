// fmt::print for what says how work goes on. Whoever reads may go, a terminal or the other end of a pipe:
// then nothing is said any more, and nothing else is different. fmt::print would throw.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <utility>

namespace weft::cli {

template <typename... T>
void say(std::FILE* out, fmt::format_string<T...> format, T&&... values) {
  const std::string text = fmt::format(format, std::forward<T>(values)...);
  std::fwrite(text.data(), 1, text.size(), out);
}

}  // namespace weft::cli
