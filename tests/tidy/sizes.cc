#include "tests/tidy/sizes.h"

#include <algorithm>
#include <optional>
#include <set>

#include "tests/tidy/tokens.h"

namespace weft::tidy {
namespace {

using Tokens = std::vector<Token>;
constexpr size_t kNowhere = static_cast<size_t>(-1);
const std::set<std::string> kClassKeys = {"class", "struct", "union", "enum"};

enum class Kind { Namespace, Class, Enum, Function, Lambda, Block, Initializer };

bool is(const Tokens& tokens, size_t at, std::string_view text) {
  return at < tokens.size() && tokens[at].text == text;
}

// The bracket that the one at `close` closes; kNowhere where there is none.
size_t opening_of(const Tokens& tokens, size_t close, std::string_view open) {
  size_t depth = 0;
  for (size_t i = close; i != kNowhere; --i) {
    if (tokens[i].text == tokens[close].text) ++depth;
    if (tokens[i].text == open && --depth == 0) return i;
  }
  return kNowhere;
}

// Behind the angle bracket that closes what opens at `open`.
size_t behind_angles(const Tokens& tokens, size_t open) {
  size_t depth = 0;
  for (size_t i = open; i < tokens.size(); ++i) {
    if (tokens[i].text == "<") ++depth;
    if (tokens[i].text == ">" && --depth == 0) return i + 1;
  }
  return tokens.size();
}

// Behind `template <...>` and specifiers.
size_t first_word(const Tokens& tokens) {
  static const std::set<std::string> kBefore = {"inline", "static", "constexpr", "const", "typedef"};
  size_t at = 0;
  while (at < tokens.size()) {
    if (is(tokens, at, "template") && is(tokens, at + 1, "<"))
      at = behind_angles(tokens, at + 1);
    else if (kBefore.contains(tokens[at].text))
      ++at;
    else
      break;
  }
  return at;
}

// The bracket that opens a function's parameters: the first that stands outside angle brackets.
size_t parameters_of(const Tokens& tokens) {
  static const std::set<std::string> kNoFunction = {"decltype", "noexcept", "alignas", "requires",
                                                    "__launch_bounds__"};
  for (size_t i = first_word(tokens); i < tokens.size(); ++i) {
    if (is(tokens, i, "operator")) {  // its sign may be a bracket
      for (i += is(tokens, i + 1, "(") ? 3 : 1; i < tokens.size() && tokens[i].text != "(";) ++i;
      return i < tokens.size() ? i : kNowhere;
    }
    if (tokens[i].text == "<" && i > 0 && is_name(tokens[i - 1])) i = behind_angles(tokens, i) - 1;
    if (is(tokens, i, "(") && i > 0 && !kNoFunction.contains(tokens[i - 1].text)) return i;
  }
  return kNowhere;
}

// Of a name that ends before `end`: where its last part begins.
size_t begin_of_part(const Tokens& tokens, size_t end) {
  size_t from = end;
  if (is(tokens, from - 1, ">")) from = opening_of(tokens, from - 1, "<");
  if (from != kNowhere && from > 0 && is_name(tokens[from - 1])) --from;
  if (from > 0 && is(tokens, from - 1, "~")) --from;
  return from;
}

// Without what stands in angle brackets.
std::string name_before(const Tokens& tokens, size_t parameters) {
  size_t from = begin_of_part(tokens, parameters);
  for (size_t i = parameters; i != kNowhere && i + 4 > parameters; --i)
    if (is(tokens, i, "operator")) from = std::min(from, i);
  while (from > 1 && is(tokens, from - 1, "::")) from = begin_of_part(tokens, from - 1);
  std::string name;
  for (size_t i = from; i < parameters; ++i) {
    if (is(tokens, i, "<") && !is(tokens, i - 1, "operator")) i = behind_angles(tokens, i);
    if (i < parameters) name += tokens[i].text;
  }
  return name;
}

// What stands before a brace ends as a lambda does: [...], (...), a type behind an arrow.
bool ends_as_lambda(const Tokens& tokens) {
  if (tokens.empty()) return false;
  size_t at = tokens.size() - 1;
  for (size_t i = at; i != kNowhere && tokens[i].text != ")" && tokens[i].text != "{}"; --i)
    if (tokens[i].text == "->") at = i - 1;
  while (at != kNowhere && (is(tokens, at, "mutable") || is(tokens, at, "noexcept"))) --at;
  if (at != kNowhere && is(tokens, at, ")")) at = opening_of(tokens, at, "(") - 1;
  if (at < tokens.size() && is(tokens, at, ">")) at = opening_of(tokens, at, "<") - 1;
  if (at >= tokens.size() || !is(tokens, at, "]") || is(tokens, at - 1, "]")) return false;
  at = opening_of(tokens, at, "[");
  if (at == kNowhere) return false;
  if (at == 0) return true;
  const Token& before = tokens[at - 1];
  return before.text == "return" || !(is_name(before) || before.text == ")" || before.text == "]");
}

// Where the list of a constructor's members begins.
bool is_in_member_list(const Tokens& tokens) {
  size_t depth = 0;
  for (size_t i = 1; i < tokens.size(); ++i) {
    if (tokens[i].text == "(") ++depth;
    if (tokens[i].text == ")") --depth;
    if (depth == 0 && tokens[i].text == ":" && (is(tokens, i - 1, ")") || is(tokens, i - 1, "noexcept")))
      return true;
  }
  return false;
}

bool is_assigned(const Tokens& tokens) {
  size_t depth = 0;
  for (size_t i = first_word(tokens); i < tokens.size(); ++i) {
    if (is(tokens, i, "operator")) return false;
    if (tokens[i].text == "(") ++depth;
    if (tokens[i].text == ")") --depth;
    if (depth == 0 && tokens[i].text == "=") return true;
  }
  return false;
}

bool ends_as_function(const Tokens& tokens) {
  static const std::set<std::string> kEnds = {")", "const", "noexcept", "override", "final", "&", "try"};
  if (parameters_of(tokens) == kNowhere || is_assigned(tokens)) return false;
  if (is_in_member_list(tokens)) return tokens.back().text == ")" || tokens.back().text == "{}";
  return kEnds.contains(tokens.back().text) ||
         std::any_of(tokens.begin(), tokens.end(), [](const Token& token) { return token.text == "->"; });
}

std::optional<Kind> class_like(const Tokens& tokens) {
  const size_t at = first_word(tokens);
  if (at >= tokens.size() || !kClassKeys.contains(tokens[at].text) || is_assigned(tokens))
    return std::nullopt;
  return tokens[at].text == "enum" ? Kind::Enum : Kind::Class;
}

Kind kind_among_declarations(const Tokens& before) {
  if (before.empty()) return Kind::Block;
  const size_t first = first_word(before);
  if (is(before, first, "namespace") || is(before, first, "extern")) return Kind::Namespace;
  if (ends_as_function(before)) return Kind::Function;
  if (const auto found = class_like(before)) return *found;
  return ends_as_lambda(before) ? Kind::Lambda : Kind::Initializer;
}

Kind kind_among_statements(const Tokens& before) {
  static const std::set<std::string> kEnds = {")", "else", "do", "try", ":", "]"};
  if (before.empty()) return Kind::Block;
  if (ends_as_lambda(before)) return Kind::Lambda;
  if (const auto found = class_like(before)) return *found;
  return kEnds.contains(before.back().text) ? Kind::Block : Kind::Initializer;
}

// Behind the value that a member begins with: at the comma before the next one, or the end.
size_t behind_value(const Tokens& declaration, size_t at) {
  size_t open = 0;
  for (; at < declaration.size(); ++at) {
    if (is(declaration, at, "<")) at = behind_angles(declaration, at) - 1;
    if (is(declaration, at, "(") || is(declaration, at, "[")) ++open;
    if (is(declaration, at, ")") || is(declaration, at, "]")) --open;
    if (open == 0 && is(declaration, at, ",")) return at;
  }
  return at;
}

// Of a declaration in a class: how many members it gives each object.
size_t members_in(const Tokens& declaration) {
  static const std::set<std::string> kNone = {"using",    "typedef", "friend",   "static",
                                              "template", "inline",  "constexpr"};
  if (declaration.empty() || kNone.contains(declaration[0].text)) return 0;
  if (kClassKeys.contains(declaration[0].text) && (declaration.size() < 3 || declaration.back().text == "{}"))
    return 0;
  size_t count = 1;
  for (size_t i = 0; i < declaration.size(); ++i) {
    if (is(declaration, i, "operator")) return 0;
    if (is(declaration, i, "=")) i = behind_value(declaration, i);
    if (is(declaration, i, "<")) i = behind_angles(declaration, i) - 1;
    if (is(declaration, i, ",")) ++count;
    if (is(declaration, i, "(")) return i > 0 && declaration[i - 1].text.starts_with("WEFT_") ? count : 0;
  }
  return count;
}

std::string class_name(const Tokens& tokens) {
  size_t at = first_word(tokens) + 1;
  while (is(tokens, at, "alignas") || is(tokens, at, "[")) {  // and what they hold
    const std::string close = is(tokens, at, "[") ? "]" : ")";
    while (at < tokens.size() && tokens[at].text != close) ++at;
    while (is(tokens, at, close)) ++at;
  }
  std::string name;
  while (at < tokens.size() && (is_name(tokens[at]) || is(tokens, at, "::"))) {
    if (!name.empty() && is_name(tokens[at]) && is_name(tokens[at - 1])) break;  // final
    name += tokens[at++].text;
  }
  return name.empty() ? "(class)" : name;
}

class Walk {
 public:
  explicit Walk(std::string_view text) : tokens_(tokens_of(text)) {
    sizes_.lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }

  Sizes take() {
    for (; at_ < tokens_.size(); ++at_) {
      const std::string& text = tokens_[at_].text;
      if (text == "(") ++parens_;
      if (text == ")" && parens_ > 0) --parens_;
      if (text == ")" && parens_ == 0 && is_macro_alone()) begin_ = at_ + 1;
      if (text == "{") open();
      if (text == "}") close();
      if (text == ";" && parens_ == 0) end_statement();
      if (text == "," && parens_ == 0 && inside() == Kind::Initializer) begin_ = at_ + 1;
      if (text == ":" && inside() == Kind::Class && begin_ + 1 == at_) begin_ = at_ + 1;  // public:
    }
    return std::move(sizes_);
  }

 private:
  struct Scope {
    Kind kind = Kind::Namespace;
    size_t begin = 0;   // the statement that opened it
    size_t parens = 0;  // open around it
    std::string name;
    size_t members = 0;
  };

  Kind inside() const { return scopes_.empty() ? Kind::Namespace : scopes_.back().kind; }
  bool is_among_declarations() const { return inside() == Kind::Namespace || inside() == Kind::Class; }

  // A line such as WEFT_KERNEL_ENTRY(kernel, Parameters), which no semicolon ends.
  bool is_macro_alone() const {
    return is_among_declarations() && tokens_[begin_].text.starts_with("WEFT_") &&
           is(tokens_, begin_ + 1, "(") && !is(tokens_, at_ + 1, "{") && !is(tokens_, at_ + 1, ";");
  }

  // The statement up to here, what stands in braces as one token.
  Tokens statement() const {
    Tokens flat;
    size_t depth = 0;
    for (size_t i = begin_; i < at_; ++i) {
      if (tokens_[i].text == "{") ++depth;
      if (depth == 0) flat.push_back(tokens_[i]);
      if (tokens_[i].text == "}" && --depth == 0) flat.push_back({"{}", tokens_[i].line});
    }
    return flat;
  }

  void open() {
    const Tokens before = statement();
    scopes_.push_back({kind_of(before), begin_, parens_, {}, 0});
    Scope& scope = scopes_.back();
    if (scope.kind == Kind::Function) scope.name = name_before(before, parameters_of(before));
    if (scope.kind == Kind::Class) scope.name = class_name(before);
    if (scope.kind == Kind::Lambda) scope.name = "(lambda)";
    if (scope.kind == Kind::Lambda) lambda_lines_.push_back(lambda_line(before));
    begin_ = at_ + 1;
    parens_ = 0;
  }
  Kind kind_of(const Tokens& before) const {
    if (parens_ > 0 || inside() == Kind::Initializer || inside() == Kind::Enum)
      return ends_as_lambda(before) ? Kind::Lambda : Kind::Initializer;
    return is_among_declarations() ? kind_among_declarations(before) : kind_among_statements(before);
  }
  static size_t lambda_line(const Tokens& before) {
    for (size_t i = before.size() - 1; i != kNowhere; --i)
      if (before[i].text == "]") return before[std::min(opening_of(before, i, "["), i)].line;
    return before.back().line;
  }

  void close() {
    if (scopes_.empty()) return;
    const Scope scope = std::move(scopes_.back());
    scopes_.pop_back();
    parens_ = scope.parens;
    const size_t last = tokens_[at_].line;
    const size_t first = tokens_[scope.begin].line;
    if (scope.kind == Kind::Function) sizes_.functions.push_back({scope.name, first, last - first + 1});
    if (scope.kind == Kind::Class)
      sizes_.classes.push_back({scope.name, first, last - first + 1, scope.members});
    if (scope.kind == Kind::Lambda) {
      sizes_.functions.push_back({scope.name, lambda_lines_.back(), last - lambda_lines_.back() + 1});
      lambda_lines_.pop_back();
    }
    const bool ends =
        scope.kind == Kind::Function || scope.kind == Kind::Namespace || scope.kind == Kind::Block;
    begin_ = ends ? at_ + 1 : scope.begin;  // a statement goes on behind a value or a class
  }

  void end_statement() {
    if (inside() == Kind::Class) scopes_.back().members += members_in(statement());
    begin_ = at_ + 1;
  }

  Tokens tokens_;
  size_t at_ = 0;
  size_t begin_ = 0;   // of the statement
  size_t parens_ = 0;  // open in the statement
  std::vector<Scope> scopes_;
  std::vector<size_t> lambda_lines_;  // of those that are open
  Sizes sizes_;
};

}  // namespace

Sizes sizes_of(std::string_view text) { return Walk(text).take(); }

}  // namespace weft::tidy
