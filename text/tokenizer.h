// Text to tokens and back, as the model was trained with it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token.h"

namespace weft::text {

inline constexpr size_t kTokenizerFileMax = size_t{64} << 20;  // bytes
inline constexpr size_t kTextMax = size_t{16} << 20;           // bytes that are encoded at once

enum class SpecialTokens : uint8_t {
  Recognized,  // "<|end|>" in the text becomes the control token of that name
  AsText,      // it stays text, as what a user wrote has to
};
struct EncodeOptions {
  SpecialTokens special = SpecialTokens::AsText;
  bool adds_frame = true;  // the tokens that the file puts before and behind each text: begin of text, mostly
};
// A part of one text.
struct TextPart {
  std::string_view text;
  SpecialTokens special = SpecialTokens::AsText;
};

struct TokenizerParts;

// Never changes; shared by any threads, and copied for the price of a pointer.
class Tokenizer {
 public:
  // A token is a byte: 256 of them, none special. What weft's byte-level example models are trained with.
  static Tokenizer bytes();
  // For parse_tokenizer_json and tests.
  explicit Tokenizer(std::shared_ptr<const TokenizerParts> parts) : parts_(std::move(parts)) {}

  // The tokens of a text, the same that Hugging Face's library gives for text that is UTF-8. Other bytes are
  // encoded as bytes where the vocabulary has them. O(n log n) steps and some 40 bytes of memory a byte, at
  // most. OutOfRange: more than kTextMax bytes. ResourceExhausted: the file's pattern or normalizer is
  // hostile, or the text is made for it (pattern.h, normalizer.h).
  Result<std::vector<TokenId>> encode(std::string_view text, const EncodeOptions& options = {}) const;
  // Of a text in parts; `special` says of each whether control tokens are found in it. A token never reaches
  // over the border of two parts whose `special` differs.
  Result<std::vector<TokenId>> encode(std::span<const TextPart> parts, bool adds_frame) const;

  // The text of tokens, as a Detokenizer gives it (detokenizer.h). An id that is no token has no text.
  std::string decode(std::span<const TokenId> tokens, bool skips_special = true) const;
  // The same before bytes that are no UTF-8 are replaced: what was encoded, where the file's normalizer and
  // pre-tokenizer keep everything. decode_bytes(encode(s)) = s then.
  std::string decode_bytes(std::span<const TokenId> tokens, bool skips_special = true) const;

  // Ids are below it; not every number below it need be a token. A model's own may be larger, by padding.
  size_t vocabulary_size() const;
  // "bytes", "byte-level BPE", "BPE".
  std::string_view kind() const;
  // An added token of the file, special or not, by its content.
  std::optional<TokenId> added_token(std::string_view content) const;
  bool is_special(TokenId token) const;
  // The tokens that the file puts before each text.
  std::span<const TokenId> before() const;
  // Special tokens after which models end a text or a turn, by their usual names: <|endoftext|>, </s>,
  // <|im_end|> and their like. Ascending.
  std::span<const TokenId> end_tokens() const;

  const TokenizerParts& parts() const { return *parts_; }

 private:
  std::shared_ptr<const TokenizerParts> parts_;
};

// The tokens of a text that stands in segments, of each segment. Those of the first n segments together are
// what the tokenizer makes of their text: whoever asks a model with a beginning of the text asks with the
// tokens that it learnt from. Where a token would reach over a border, what is behind that border is a text
// of its own. `before`: what stands before it all, whose tokens are left out. OutOfRange: as encode; or so
// many segments that the beginnings have more than kBeginningsMax bytes together.
inline constexpr size_t kBeginningsMax = size_t{64} << 20;
Result<std::vector<std::vector<TokenId>>> encode_segments(const Tokenizer& tokenizer,
                                                          const std::optional<TextPart>& before,
                                                          std::span<const std::string_view> segments,
                                                          SpecialTokens special);

// A tokenizer.json of Hugging Face's library, with the model BPE: byte-level as of GPT-2, Llama 3 and Qwen,
// or of SentencePiece's kind as of Llama 2, Mistral and Gemma. "truncation" and "padding" are not obeyed.
// Unsupported: another model (WordPiece, Unigram, WordLevel), normalizer, pre-tokenizer, post-processor or
// decoder, by its name. OutOfRange: more than kTokenizerFileMax bytes, nested over 32 deep, over a million
// entries in one list; these take 100 ms at most. Corrupted: whatever else is wrong, in 2 s and in memory of
// ten times the file's size and 4 MB.
Result<Tokenizer> parse_tokenizer_json(std::string_view bytes);

}  // namespace weft::text
