#include "text/normalizer.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "base/overloaded.h"
#include "base/printable.h"
#include "text/blanks.h"
#include "text/json.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

std::optional<UnicodeForm> form_of(std::string_view name) {
  if (name == "NFC") return UnicodeForm::NFC;
  if (name == "NFD") return UnicodeForm::NFD;
  if (name == "NFKC") return UnicodeForm::NFKC;
  if (name == "NFKD") return UnicodeForm::NFKD;
  return std::nullopt;
}

tl::unexpected<Error> grew(size_t size_max) {
  return fail(ErrorCode::ResourceExhausted, "the tokenizer's normalizer makes more than " +
                                                std::to_string(size_max) + " bytes of this text");
}

}  // namespace

Result<Pattern> parse_pattern(const Json& pattern) {
  if (pattern.is_object() && pattern.contains("Regex")) {
    WEFT_TRY(const std::string expression, string_member(pattern, "Regex"));
    return Pattern::compile(expression);
  }
  WEFT_TRY(const std::string text, string_member(pattern, "String"));
  if (text.empty()) return fail(ErrorCode::Corrupted, "its pattern is empty");
  if (text.size() > kLiteralMax)
    return fail(ErrorCode::OutOfRange, "its pattern has " + std::to_string(text.size()) + " bytes; at most " +
                                           std::to_string(kLiteralMax) + " are read");
  return Pattern::literal(text);
}

Result<Normalizer> Normalizer::parse(const Json& normalizer) {
  Normalizer made;
  if (!normalizer.is_null()) WEFT_TRY_STATUS(made.add(normalizer));
  return made;
}

Status Normalizer::add(const Json& normalizer) {
  WEFT_TRY(const std::string type, type_of(normalizer));
  if (type == "Sequence") {
    WEFT_TRY(const Json* const parts, array_member(normalizer, "normalizers"));
    for (const Json& part : *parts) WEFT_TRY_STATUS(add(part));
    return {};
  }
  if (steps_.size() == kStepsInSequenceMax)
    return fail(ErrorCode::OutOfRange,
                "has more than " + std::to_string(kStepsInSequenceMax) + " normalizers");
  if (type == "Prepend") {
    WEFT_TRY(std::string text, string_member(normalizer, "prepend"));
    steps_.emplace_back(Prepend{std::move(text)});
  } else if (type == "Replace") {
    WEFT_TRY(Pattern pattern, parse_pattern(member(normalizer, "pattern")));
    WEFT_TRY(std::string by, string_member(normalizer, "content"));
    steps_.emplace_back(Replace{std::move(pattern), std::move(by)});
  } else if (const auto form = form_of(type)) {
    steps_.emplace_back(*form);
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "Strip") {
    Strip strip;
    WEFT_TRY(strip.left, bool_member(normalizer, "strip_left", true));
    WEFT_TRY(strip.right, bool_member(normalizer, "strip_right", true));
    steps_.emplace_back(strip);
  } else {
    return fail(ErrorCode::Unsupported, "the normalizer " + printable(type) +
                                            " is not supported; Sequence, Prepend, Replace, NFC, NFD, NFKC, "
                                            "NFKD, Lowercase and Strip are");
  }
  return {};
}

Result<std::string> Normalizer::apply(std::string_view text) const {
  const size_t size_max = 16 * text.size() + (size_t{1} << 20);
  std::string normalized(text);
  for (const Step& step : steps_) {
    WEFT_TRY(normalized, apply_step(step, std::move(normalized), size_max));
    if (normalized.size() > size_max) return grew(size_max);
  }
  return normalized;
}

Result<std::string> Normalizer::apply_step(const Step& step, std::string text, size_t size_max) {
  return std::visit(Overloaded{[&](const Prepend& prepend) -> Result<std::string> {
                                 return text.empty() ? text : prepend.text + text;
                               },
                               [&](const Replace& replace) -> Result<std::string> {
                                 std::vector<Match> matches;
                                 WEFT_TRY_STATUS(replace.pattern.find_all(text, matches));
                                 if (text.size() + matches.size() * replace.by.size() > size_max)
                                   return grew(size_max);
                                 std::string replaced;
                                 size_t at = 0;
                                 for (const Match& match : matches) {
                                   replaced.append(text, at, match.begin - at).append(replace.by);
                                   at = match.end;
                                 }
                                 return replaced.append(text, at);
                               },
                               [&](UnicodeForm form) -> Result<std::string> { return normalize(text, form); },
                               [&](Lowercase) -> Result<std::string> { return lower_case(text); },
                               [&](const Strip& strip) -> Result<std::string> {
                                 std::string_view left = text;
                                 if (strip.left) left.remove_prefix(leading_blanks(left));
                                 if (strip.right) left.remove_suffix(trailing_blanks(left));
                                 return std::string(left);
                               }},
                    step);
}

}  // namespace weft::text
