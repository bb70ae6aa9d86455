#include "base/check.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"
#include "text/chat.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace weft::fuzz {
namespace {

void encode_and_decode(const text::Tokenizer& tokenizer, std::string_view text, text::SpecialTokens special) {
  const auto ids = tokenizer.encode(text, {.special = special});
  if (!ids) return;
  text::Detokenizer detokenizer(tokenizer);
  std::string decoded;
  for (const text::TokenId id : *ids) {
    WEFT_CHECK(id < tokenizer.vocabulary_size());
    const std::string part = detokenizer.push(id);
    WEFT_CHECK(text::valid_prefix(part) == part.size());
    decoded += part;
  }
  decoded += detokenizer.finish();
  WEFT_CHECK(decoded == tokenizer.decode(*ids));
}

}  // namespace

// A text of so many bytes as the first byte says, then the file.
void tokenizers(std::span<const std::byte> bytes) {
  Input input(bytes);
  const std::string_view text = as_text(input.take(input.byte()));
  const std::string_view file = as_text(input.rest());
  (void)text::recognize_chat_template(file);
  const auto tokenizer = text::parse_tokenizer_json(file);
  if (!tokenizer) return;
  encode_and_decode(*tokenizer, text, text::SpecialTokens::Recognized);
  encode_and_decode(*tokenizer, text, text::SpecialTokens::AsText);
  const text::ChatMessage message{"user", std::string(text)};
  (void)text::encode_chat(*tokenizer, text::ChatTemplate::ChatML, std::span(&message, 1));
}

}  // namespace weft::fuzz
