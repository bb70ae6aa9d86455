// A regular expression that a stranger may have written, on a text that another one may have: the door to
// PCRE2.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace weft::text {

struct Match {
  size_t begin = 0, end = 0;  // bytes
  bool operator==(const Match&) const = default;
};

// Never changes; used by any threads.
class Pattern {
 public:
  // In Oniguruma's syntax (pattern_syntax.h). Unsupported, Corrupted, OutOfRange: what PCRE2 or weft does not
  // take, and where in the expression that is. Takes some milliseconds at most.
  static Result<Pattern> compile(std::string_view expression);
  // Finds exactly this text. REQUIRES: it is not empty.
  static Pattern literal(std::string_view text);

  // Appends the matches in `text`: PatternSearch::find_all for one text.
  Status find_all(std::string_view text, std::vector<Match>& matches) const;

 private:
  friend class PatternSearch;
  struct Code;
  explicit Pattern(std::shared_ptr<const Code> code) : code_(std::move(code)) {}
  std::shared_ptr<const Code> code_;
  std::string literal_;  // where there is no code
};

// What one search takes, for all parts of a text. Belongs to one thread; the pattern outlives it.
class PatternSearch {
 public:
  // `text_size` bytes in all will be searched.
  PatternSearch(const Pattern& pattern, size_t text_size);
  ~PatternSearch();

  // Appends the matches in a part, in order, their places counted from `offset`. They do not overlap; an
  // empty one stands nowhere directly behind the one before. What is no UTF-8 matches nothing: the part ends
  // before it and begins again behind it. ResourceExhausted: the expression is hostile, or the text is made
  // for it. All parts together took the thread more than 50 ms and 0.5 us for each byte (8 times that where
  // PCRE2 makes no machine code), or a single match took far more steps than the text has bytes.
  Status find_all(std::string_view part, size_t offset, std::vector<Match>& matches);

 private:
  struct State;
  Status find_valid(std::string_view part, size_t offset, std::vector<Match>& matches);
  Result<bool> find(std::string_view part, size_t at);
  int match(std::string_view part, size_t at);

  const Pattern& pattern_;
  std::unique_ptr<State> state_;  // none for a literal
};

}  // namespace weft::text
