#include "text/tokenizer.h"

#include <algorithm>

#include "text/detokenizer.h"
#include "text/tokenizer_parts.h"

namespace weft::text {
namespace {

// One text on its way to tokens.
class Encoder {
 public:
  explicit Encoder(const TokenizerParts& parts) : parts_(parts) {}

  Status add(const TextPart& part) {
    const bool with_special = part.special == SpecialTokens::Recognized;
    if (!parts_.bpe) {
      for (const char byte : part.text) tokens_.push_back(static_cast<uint8_t>(byte));
      return {};
    }
    tokens_.reserve(tokens_.size() + part.text.size() / 3);
    for (const AddedPart& found : parts_.added.split(part.text, with_special)) {
      if (found.token)
        tokens_.push_back(*found.token);
      else
        WEFT_TRY_STATUS(add_plain(found.text, with_special));
      is_first_ = false;
    }
    return {};
  }
  std::vector<TokenId>& tokens() { return tokens_; }

 private:
  Status add_plain(std::string_view text, bool with_special) {
    if (parts_.normalizer.does_nothing()) return add_normalized(text, with_special);
    WEFT_TRY(const std::string normalized, parts_.normalizer.apply(text));
    return add_normalized(normalized, with_special);
  }
  Status add_normalized(std::string_view text, bool with_special) {
    if (parts_.added_normalized.empty()) return add_pieces(text, is_first_);
    for (const AddedPart& found : parts_.added_normalized.split(text, with_special)) {
      if (found.token)
        tokens_.push_back(*found.token);
      else
        WEFT_TRY_STATUS(add_pieces(found.text, is_first_ && found.text.data() == text.data()));
    }
    return {};
  }
  Status add_pieces(std::string_view text, bool is_first) {
    WEFT_TRY_STATUS(parts_.pre_tokenizer.apply(text, is_first, pieces_));
    for (const Match& place : pieces_.places)
      parts_.bpe->encode(pieces_.text.substr(place.begin, place.end - place.begin), tokens_);
    return {};
  }

  const TokenizerParts& parts_;
  std::vector<TokenId> tokens_;
  Pieces pieces_;
  bool is_first_ = true;
};

}  // namespace

const AddedToken* TokenizerParts::added_by_id(TokenId token) const {
  const auto found = std::partition_point(all_added.begin(), all_added.end(),
                                          [&](const AddedToken& added) { return added.id < token; });
  return found != all_added.end() && found->id == token ? &*found : nullptr;
}

Tokenizer Tokenizer::bytes() {
  auto parts = std::make_shared<TokenizerParts>();
  parts->decode_rules.is_byte_level = true;
  return Tokenizer(std::move(parts));
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const TextPart part{text, options.special};
  return encode(std::span(&part, 1), options.adds_frame);
}

Result<std::vector<TokenId>> Tokenizer::encode(std::span<const TextPart> parts, bool adds_frame) const {
  size_t size = 0;
  for (const TextPart& part : parts) size += std::min(part.text.size(), kTextMax + 1);
  if (size > kTextMax)
    return fail(ErrorCode::OutOfRange, "the text has " + std::to_string(size) + " bytes; at most " +
                                           std::to_string(kTextMax) + " are encoded at once");
  Encoder encoder(*parts_);
  std::vector<TokenId>& tokens = encoder.tokens();
  if (adds_frame) tokens = parts_->before;
  for (const TextPart& part : parts) WEFT_TRY_STATUS(encoder.add(part));
  if (adds_frame) tokens.insert(tokens.end(), parts_->behind.begin(), parts_->behind.end());
  return std::move(tokens);
}

Result<std::vector<std::vector<TokenId>>> encode_segments(const Tokenizer& tokenizer,
                                                          const std::optional<TextPart>& before,
                                                          std::span<const std::string_view> segments,
                                                          SpecialTokens special) {
  std::vector<TextPart> parts;
  size_t left_out = 0;  // tokens of `before`
  if (before) {
    parts.push_back(*before);
    WEFT_TRY(const auto tokens, tokenizer.encode(parts, /*adds_frame=*/false));
    left_out = tokens.size();
  }
  parts.push_back({{}, special});
  const auto encode = [&](std::string_view text) {
    parts.back().text = text;
    return tokenizer.encode(parts, /*adds_frame=*/false);
  };
  std::vector<std::vector<TokenId>> all;
  all.reserve(segments.size());
  std::string text;            // that is one with the next segment
  std::vector<TokenId> known;  // its tokens, behind those of `before`
  size_t bytes = 0;
  for (const std::string_view segment : segments) {
    text += segment;
    bytes += text.size();
    if (bytes > kBeginningsMax)
      return fail(ErrorCode::OutOfRange, "a text of " + std::to_string(segments.size()) +
                                             " segments, this long, is not encoded; divide it");
    WEFT_TRY(std::vector<TokenId> tokens, encode(text));
    auto fresh = tokens.begin() + static_cast<ptrdiff_t>(left_out);
    if (static_cast<size_t>(tokens.end() - fresh) >= known.size() &&
        std::equal(known.begin(), known.end(), fresh)) {
      fresh += static_cast<ptrdiff_t>(known.size());
    } else {
      text = segment;
      WEFT_TRY(tokens, encode(text));
      fresh = tokens.begin() + static_cast<ptrdiff_t>(left_out);
      known.clear();
    }
    all.emplace_back(fresh, tokens.end());
    known.insert(known.end(), all.back().begin(), all.back().end());
  }
  return all;
}

std::string Tokenizer::decode(std::span<const TokenId> tokens, bool skips_special) const {
  Detokenizer detokenizer(*this, {.skips_special = skips_special});
  std::string text;
  for (const TokenId token : tokens) text += detokenizer.push(token);
  return text + detokenizer.finish();
}

std::string Tokenizer::decode_bytes(std::span<const TokenId> tokens, bool skips_special) const {
  TokenJoiner joiner(*this, {.skips_special = skips_special});
  std::string bytes;
  for (const TokenId token : tokens) joiner.push(token, bytes);
  joiner.finish(bytes);
  return bytes;
}

size_t Tokenizer::vocabulary_size() const { return parts_->vocabulary_size; }

std::string_view Tokenizer::kind() const {
  if (!parts_->bpe) return "bytes";
  return parts_->bpe->options().is_byte_level ? "byte-level BPE" : "BPE";
}

std::optional<TokenId> Tokenizer::added_token(std::string_view content) const {
  const AddedToken* found = parts_->added.find(content);
  if (found == nullptr) found = parts_->added_normalized.find(content);
  if (found == nullptr) return std::nullopt;
  return found->id;
}

bool Tokenizer::is_special(TokenId token) const {
  const AddedToken* const found = parts_->added_by_id(token);
  return found != nullptr && found->is_special;
}

std::span<const TokenId> Tokenizer::before() const { return parts_->before; }

std::span<const TokenId> Tokenizer::end_tokens() const { return parts_->end_tokens; }

}  // namespace weft::text
