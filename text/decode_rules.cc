#include "text/decode_rules.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "text/json.h"
#include "text/normalizer.h"
#include "text/utf8.h"

namespace weft::text {
namespace {

using Json = nlohmann::json;

constexpr size_t kGrowthMax = 64;  // bytes that a replacement makes of one

std::string replaced(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  while (true) {
    const size_t at = text.find(what);
    out += text.substr(0, at);
    if (at == std::string_view::npos) return out;
    out += by;
    text.remove_prefix(at + what.size());
  }
}

// Reads the decoders of a sequence, in their order.
class DecoderReader {
 public:
  Result<DecodeRules> run(const Json& decoder) {
    WEFT_TRY_STATUS(add(decoder));
    return std::move(rules_);
  }

 private:
  Status add(const Json& decoder) {
    WEFT_TRY(const std::string type, type_of(decoder));
    if (++count_ > 2 * kStepsInSequenceMax) return fail(ErrorCode::OutOfRange, "has too many decoders");
    if (type == "Sequence") {
      WEFT_TRY(const Json* const parts, array_member(decoder, "decoders"));
      for (const Json& part : *parts) WEFT_TRY_STATUS(add(part));
      return {};
    }
    if (rules_.is_byte_level) return misplaced(type);
    if (type == "ByteLevel") return byte_level();
    if (type == "Replace") return fused_ ? misplaced(type) : replace(decoder);
    if (type == "Metaspace") return fused_ ? misplaced(type) : metaspace(decoder);
    if (type == "Strip") return fused_ ? strip(decoder) : misplaced(type);
    if (type == "ByteFallback") {
      if (fused_) return misplaced(type);
      rules_.byte_fallback = true;
      return {};
    }
    if (type == "Fuse") {
      fused_ = true;
      return {};
    }
    return fail(ErrorCode::Unsupported, "the decoder " + printable(type) +
                                            " is not supported; Sequence, ByteLevel, Metaspace, Replace, "
                                            "ByteFallback, Fuse and Strip are");
  }
  tl::unexpected<Error> misplaced(const std::string& type) const {
    return fail(ErrorCode::Unsupported, "the decoder " + printable(type) + " at this place of a sequence");
  }
  Status byte_level() {
    if (count_ > 2) return misplaced("ByteLevel");
    rules_.is_byte_level = true;
    return {};
  }
  Status replace(const Json& decoder) {
    const Json& pattern = member(decoder, "pattern");
    if (!pattern.is_object() || !pattern.contains("String"))
      return fail(ErrorCode::Unsupported, "a decoder that replaces by a regular expression");
    WEFT_TRY(std::string what, string_member(pattern, "String"));
    WEFT_TRY(std::string by, string_member(decoder, "content"));
    if (what.empty() || what.size() > kLiteralMax || by.size() > kGrowthMax)
      return fail(ErrorCode::Unsupported,
                  "the decoder Replace with an empty pattern, or a long one or content");
    rules_.replacements.emplace_back(std::move(what), std::move(by));
    return {};
  }
  Status metaspace(const Json& decoder) {
    WEFT_TRY(std::string mark, string_member(decoder, "replacement", std::string(kBlankMark)));
    WEFT_TRY(const bool adds, bool_member(decoder, "add_prefix_space", true));
    WEFT_TRY(const std::string scheme, string_member(decoder, "prepend_scheme", adds ? "always" : "never"));
    if (mark.empty() || mark.size() > kLiteralMax)
      return fail(ErrorCode::Corrupted, "'replacement' of Metaspace is not one character");
    if (scheme != "never") rules_.first_without = mark;
    rules_.replacements.emplace_back(std::move(mark), " ");
    return {};
  }
  Status strip(const Json& decoder) {
    WEFT_TRY(rules_.stripped, string_member(decoder, "content"));
    WEFT_TRY(rules_.stripped_max, count_member(decoder, "start", 0));
    WEFT_TRY(const uint64_t stop, count_member(decoder, "stop", 0));
    if (stop > 0) return fail(ErrorCode::Unsupported, "the decoder Strip at the end of a text");
    if (rules_.stripped.empty()) rules_.stripped_max = 0;
    return {};
  }

  DecodeRules rules_;
  size_t count_ = 0;
  bool fused_ = false;
};

}  // namespace

std::optional<uint8_t> byte_of_fallback(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return byte;
}

Result<DecodeRules> DecodeRules::parse(const Json& decoder) {
  if (decoder.is_null())
    return fail(ErrorCode::Unsupported,
                "there is none; add {\"type\": \"ByteLevel\"} or what the model was "
                "trained with");
  return DecoderReader().run(decoder);
}

std::string DecodeRules::text_of(std::string_view token, bool is_first) const {
  std::string text(token);
  if (is_first && !first_without.empty()) text = replaced(text, first_without, "");
  for (const auto& [what, by] : replacements) text = replaced(text, what, by);
  return text;
}

}  // namespace weft::text
