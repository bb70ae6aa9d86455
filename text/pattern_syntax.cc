#include "text/pattern_syntax.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <iterator>

#include "base/printable.h"
#include "text/unicode_ages.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

// As items of a class. PCRE2's own \s has U+180E as well, and its \w lacks what is only alphabetic.
constexpr std::string_view kSpaceItems = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kHexItems = "0-9A-Fa-f";

// A general category, or the first letter of some, and what is younger than PCRE2's Unicode.
std::string category_items(std::string_view category) {
  std::string items = "\\p{" + std::string(category) + "}";
  for (const CategoryRange& range : characters_since_unicode_14()) {
    if (!std::string_view(range.category).starts_with(category)) continue;
    char text[32];
    std::snprintf(text, sizeof text, "\\x{%X}-\\x{%X}", static_cast<unsigned>(range.first),
                  static_cast<unsigned>(range.last));
    items += text;
  }
  return items;
}
// Six signs of Latin-1 count as parts of words there.
const std::string& word_items() {
  static const std::string kItems = R"(\p{Alphabetic}\p{Pc}\xB2\xB3\xB9\xBC-\xBE)" + category_items("L") +
                                    category_items("M") + category_items("Nd");
  return kItems;
}
bool is_category(std::string_view name) {
  static constexpr std::string_view kCategories[] = {"L",  "Lu", "Ll", "Lt", "Lm", "Lo", "M",  "Mn", "Mc",
                                                     "Me", "N",  "Nd", "Nl", "No", "P",  "Pc", "Pd", "Ps",
                                                     "Pe", "Pi", "Pf", "Po", "S",  "Sm", "Sc", "Sk", "So",
                                                     "Z",  "Zs", "Zl", "Zp", "C",  "Cc", "Cf", "Co"};
  return std::find(std::begin(kCategories), std::end(kCategories), name) != std::end(kCategories);
}

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex(char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0; }

class Translator {
 public:
  explicit Translator(std::string_view expression) : left_(expression) {}

  Result<std::string> run() {
    while (!left_.empty()) WEFT_TRY_STATUS(next());
    return std::move(out_);
  }

 private:
  tl::unexpected<Error> refuse(std::string_view what) const {
    return fail(ErrorCode::Unsupported, "'" + printable(what.substr(0, 16)) +
                                            "' in a pattern is not supported; write the pattern without it");
  }
  void copy(size_t size) {
    out_ += left_.substr(0, size);
    left_.remove_prefix(size);
  }
  void write(std::string_view text, size_t size) {
    out_ += text;
    left_.remove_prefix(size);
  }

  Status next() {
    switch (left_[0]) {
      case '\\':
        return escape();
      case '[':
        return char_class();
      case '(':
        return group();
      case '{':
        return braces();
      default:
        copy(1);
        return {};
    }
  }

  Status group() {
    if (!left_.starts_with("(?")) {
      if (left_.starts_with("(*")) return refuse("(*");
      write("(?:", 1);
      return {};
    }
    static constexpr std::string_view kGroups[] = {"(?:", "(?=",  "(?!",   "(?<=", "(?<!",
                                                   "(?>", "(?i:", "(?-i:", "(?i)", "(?-i)"};
    for (const std::string_view known : kGroups)
      if (left_.starts_with(known)) {
        copy(known.size());
        return {};
      }
    return refuse(left_.substr(0, 4));
  }

  // {n}, {n,}, {,m}, {n,m}; what is none of these stands for itself.
  Status braces() {
    size_t at = 1;
    while (at < left_.size() && (is_digit(left_[at]) || left_[at] == ',')) ++at;
    const std::string_view inside = left_.substr(1, at - 1);
    if (at == left_.size() || left_[at] != '}' || inside.empty() || inside == "," ||
        std::count(inside.begin(), inside.end(), ',') > 1) {
      write("\\{", 1);
      return {};
    }
    const bool is_exact = inside.find(',') == std::string_view::npos;
    const char after = at + 1 < left_.size() ? left_[at + 1] : '\0';
    if (after == '+' || (after == '?' && is_exact)) return refuse(left_.substr(0, at + 2));
    write("{" + std::string(inside.starts_with(',') ? "0" : "") + std::string(inside) + "}", at + 1);
    return {};
  }

  Status escape() {
    if (left_.size() < 2) return refuse("\\");
    switch (left_[1]) {
      case 's':
        write("[" + std::string(kSpaceItems) + "]", 2);
        return {};
      case 'S':
        write("[^" + std::string(kSpaceItems) + "]", 2);
        return {};
      case 'w':
        write("[" + word_items() + "]", 2);
        return {};
      case 'W':
        write("[^" + word_items() + "]", 2);
        return {};
      case 'd':
        write("[" + category_items("Nd") + "]", 2);
        return {};
      case 'D':
        write("[^" + category_items("Nd") + "]", 2);
        return {};
      case 'p':
        return property("[", "]");
      case 'P':
        return property("[^", "]");
      case 'h':
        write("[" + std::string(kHexItems) + "]", 2);
        return {};
      case 'H':
        write("[^" + std::string(kHexItems) + "]", 2);
        return {};
      case 'b':
        write(word_boundary(), 2);
        return {};
      case 'A':
      case 'z':
      case 'Z':
        copy(2);
        return {};
      default:
        return escaped_item();
    }
  }
  static std::string word_boundary() {
    const std::string word = "[" + word_items() + "]";
    return "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
  }

  // What means the same within a class and outside.
  Status escaped_item() {
    const char c = left_[1];
    switch (c) {
      case 't':
      case 'n':
      case 'r':
      case 'f':
      case 'a':
      case 'e':
        copy(2);
        return {};
      case 'v':
        write("\\x0B", 2);
        return {};
      case 'x':
        return hex_escape();
      case 'u':
        return unicode_escape();
      default:
        break;
    }
    if (is_digit(c) || is_letter(c)) return refuse(left_.substr(0, 2));
    if (static_cast<unsigned char>(c) >= 0x80)
      write(left_.substr(1, first_character(left_.substr(1)).size),
            1 + first_character(left_.substr(1)).size);
    else
      copy(2);
    return {};
  }
  // \p{name} or \P{name}: a category, or a script.
  Status property(std::string_view open, std::string_view close) {
    const size_t end = left_.find('}');
    if (left_.size() < 3 || left_[2] != '{' || end == std::string_view::npos || end > 64)
      return refuse(left_.substr(0, 3));
    const std::string_view name = left_.substr(3, end - 3);
    if (!std::all_of(name.begin(), name.end(), [](char c) { return c == '_' || is_letter(c); }))
      return refuse(left_.substr(0, end + 1));
    std::string items;
    if (is_category(name))
      items = category_items(name);
    else if (name == "Alphabetic" || name == "White_Space" || name == "Any")
      items = "\\p{" + std::string(name) + "}";
    else
      items = "\\p{sc:" + std::string(name) + "}";
    write(std::string(open) + items + std::string(close), end + 1);
    return {};
  }
  Status hex_escape() {
    const size_t end = left_.starts_with("\\x{") ? left_.find('}') : std::string_view::npos;
    if (end != std::string_view::npos && end <= 11 && end > 3 &&
        std::all_of(left_.begin() + 3, left_.begin() + static_cast<std::ptrdiff_t>(end), is_hex)) {
      copy(end + 1);
      return {};
    }
    if (left_.size() < 4 || !is_hex(left_[2]) || !is_hex(left_[3]) || left_[2] > '7') return refuse("\\x");
    copy(4);
    return {};
  }
  Status unicode_escape() {
    if (left_.size() < 6 || !std::all_of(left_.begin() + 2, left_.begin() + 6, is_hex)) return refuse("\\u");
    write("\\x{" + std::string(left_.substr(2, 4)) + "}", 6);
    return {};
  }

  Status char_class() {
    copy(left_.starts_with("[^") ? 2 : 1);
    for (bool is_first = true; !left_.empty(); is_first = false) {
      if (left_[0] == ']') {
        if (is_first) return refuse("[]");
        copy(1);
        return {};
      }
      WEFT_TRY_STATUS(class_item());
    }
    return refuse("[");
  }
  Status class_item() {
    if (left_.starts_with("&&")) return refuse("&&");
    if (left_[0] == '[') {
      const size_t end = left_.find(":]");
      if (!left_.starts_with("[:") || end == std::string_view::npos || end > 16)
        return refuse("[ within [...]");
      copy(end + 2);
      return {};
    }
    if (left_[0] != '\\') {
      copy(1);
      return {};
    }
    if (left_.size() < 2) return refuse("\\");
    switch (left_[1]) {
      case 's':
        write(kSpaceItems, 2);
        return {};
      case 'w':
        write(word_items(), 2);
        return {};
      case 'd':
        write(category_items("Nd"), 2);
        return {};
      case 'p':
        return property("", "");
      case 'h':
        write(kHexItems, 2);
        return {};
      case 'b':
      case 'S':  // but for U+180E
        copy(2);
        return {};
      default:
        return escaped_item();
    }
  }

  std::string_view left_;
  std::string out_;
};

}  // namespace

Result<std::string> to_pcre2(std::string_view expression) {
  if (expression.size() > kExpressionMax)
    return fail(ErrorCode::OutOfRange, "a pattern has " + std::to_string(expression.size()) +
                                           " bytes; at most " + std::to_string(kExpressionMax) + " are read");
  return Translator(expression).run();
}

}  // namespace weft::text
