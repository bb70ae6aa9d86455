// Markdown that weft prints: pages of docs/ are its output.
#pragma once

#include <string>
#include <string_view>

namespace weft::cli {

// A paragraph in lines of at most 110 characters, with an end of line: broken at spaces outside of `code`.
std::string wrapped_paragraph(std::string_view text);

}  // namespace weft::cli
