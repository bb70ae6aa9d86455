// What is done to a text before it is taken apart: the normalizer of a tokenizer file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/pattern.h"
#include "text/unicode_form.h"

namespace weft::text {

inline constexpr size_t kStepsInSequenceMax = 16;  // of a normalizer, a pre-tokenizer, a decoder

inline constexpr size_t kLiteralMax = 256;  // bytes of a text that is looked for

// A "pattern" of the file: {"String": ...} or {"Regex": ...}. OutOfRange: a text of more than kLiteralMax
// bytes.
Result<Pattern> parse_pattern(const nlohmann::json& pattern);

// Never changes; used by any threads.
class Normalizer {
 public:
  // Does nothing.
  Normalizer() = default;
  // Sequence, Prepend, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Strip; null does nothing. Unsupported:
  // another one, by its name.
  static Result<Normalizer> parse(const nlohmann::json& normalizer);

  bool does_nothing() const { return steps_.empty(); }
  // ResourceExhausted: a hostile pattern, or a text that grew beyond 16 times its size and 1 MiB.
  Result<std::string> apply(std::string_view text) const;

 private:
  struct Prepend {
    std::string text;
  };
  struct Replace {
    Pattern pattern;
    std::string by;
  };
  struct Lowercase {};
  struct Strip {
    bool left = true, right = true;
  };
  using Step = std::variant<Prepend, Replace, UnicodeForm, Lowercase, Strip>;
  Status add(const nlohmann::json& normalizer);
  static Result<std::string> apply_step(const Step& step, std::string text, size_t size_max);

  std::vector<Step> steps_;
};

}  // namespace weft::text
