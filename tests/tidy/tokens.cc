#include "tests/tidy/tokens.h"

#include <algorithm>
#include <cctype>

namespace weft::tidy {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }

class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  std::vector<Token> read() {
    while (at_ < text_.size()) next();
    return std::move(tokens_);
  }

 private:
  void next() {
    const char c = text_[at_];
    if (std::isspace(static_cast<unsigned char>(c))) return skip(1);
    if (starts("//")) return skip_to_end_of_line();
    if (starts("/*")) return skip(length_to("*/", 2));
    if (c == '#' && is_first_of_line()) return skip_to_end_of_line();
    if (starts("R\"")) return literal(length_of_raw());
    if (c == '"' || c == '\'') return literal(length_of_quoted(c));
    if (is_word(c)) return token(length_of_word());
    token(starts("::") || starts("->") ? 2 : 1);
  }

  bool starts(std::string_view with) const { return text_.substr(at_).starts_with(with); }
  bool is_first_of_line() const {
    const size_t before = at_ == 0 ? std::string_view::npos : text_.find_last_not_of(" \t", at_ - 1);
    return before == std::string_view::npos || text_[before] == '\n';
  }

  // From here to behind `end`, which is looked for behind the first `from` characters.
  size_t length_to(std::string_view end, size_t from) const {
    const size_t found = text_.find(end, at_ + from);
    return (found == std::string_view::npos ? text_.size() : found + end.size()) - at_;
  }
  size_t length_of_raw() const {
    const size_t open = std::min(text_.find('(', at_), text_.size());
    return length_to(")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"", open - at_);
  }
  size_t length_of_quoted(char quote) const {
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    return std::min(end + 1, text_.size()) - at_;
  }
  size_t length_of_word() const {  // a number may hold an apostrophe
    const bool is_number = std::isdigit(static_cast<unsigned char>(text_[at_])) != 0;
    size_t end = at_;
    while (end < text_.size() && (is_word(text_[end]) || (is_number && text_[end] == '\''))) ++end;
    return end - at_;
  }

  void skip_to_end_of_line() {
    size_t end = text_.find('\n', at_);
    while (end != std::string_view::npos && text_[end - 1] == '\\') end = text_.find('\n', end + 1);
    skip(std::min(end, text_.size()) - at_);
  }
  void skip(size_t length) {
    line_ += static_cast<size_t>(std::count(text_.begin() + static_cast<ptrdiff_t>(at_),
                                            text_.begin() + static_cast<ptrdiff_t>(at_ + length), '\n'));
    at_ += length;
  }
  void literal(size_t length) {
    tokens_.push_back({"\"\"", line_});
    skip(length);
  }
  void token(size_t length) {
    tokens_.push_back({std::string(text_.substr(at_, length)), line_});
    skip(length);
  }

  std::string_view text_;
  size_t at_ = 0;
  size_t line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokens_of(std::string_view text) { return Reader(text).read(); }

bool is_name(const Token& token) {
  return is_word(token.text[0]) && !std::isdigit(static_cast<unsigned char>(token.text[0]));
}

}  // namespace weft::tidy
