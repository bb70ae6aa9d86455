#include "cli/markdown.h"

#include <cstddef>

namespace weft::cli {

constexpr size_t kPageWidth = 110;

std::string wrapped_paragraph(std::string_view text) {
  std::string result;
  size_t column = 0;
  bool in_code = false;
  std::string word;
  const auto put_word = [&] {
    if (word.empty()) return;
    const bool fits = column == 0 || column + 1 + word.size() <= kPageWidth;
    if (column > 0) result += fits ? " " : "\n";
    column = fits ? column + (column > 0) + word.size() : word.size();
    result += word;
    word.clear();
  };
  for (const char c : text) {
    if (c == '`') in_code = !in_code;
    if (c == ' ' && !in_code)
      put_word();
    else
      word += c;
  }
  put_word();
  return result + "\n";
}

}  // namespace weft::cli
