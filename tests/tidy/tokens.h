// A source as tokens: without comments, without lines of the preprocessor, a literal as one token.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace weft::tidy {

struct Token {
  std::string text;  // a name, a number, one character, "::" or "->"; a literal is "\"\""
  size_t line = 0;   // from 1
};

std::vector<Token> tokens_of(std::string_view text);

bool is_name(const Token& token);

}  // namespace weft::tidy
