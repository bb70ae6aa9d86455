#include "text/detokenizer.h"

#include <utility>

#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace weft::text {

TokenText TokenizerParts::text_of(TokenId token) const {
  using Kind = TokenText::Kind;
  if (!bpe) return token < 256 ? TokenText{Kind::Byte, {}, static_cast<uint8_t>(token)} : TokenText{};
  if (const AddedToken* const added_token = added_by_id(token))
    return {added_token->is_special ? Kind::Special : Kind::Text, added_token->decoded};
  const Vocabulary& vocabulary = bpe->vocabulary();
  if (!vocabulary.contains(token)) return {};
  const std::string_view text = vocabulary.text(token);
  if (decode_rules.byte_fallback)
    if (const auto byte = byte_of_fallback(text)) return {Kind::Byte, text, *byte};
  return {Kind::Text, text};
}

TokenJoiner::TokenJoiner(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)),
      skips_special_(options.skips_special),
      is_first_(!options.continues_text),
      strips_left_(options.continues_text ? 0 : tokenizer_.parts().decode_rules.stripped_max) {}

void TokenJoiner::push(TokenId token, std::string& bytes) {
  const TokenizerParts& parts = tokenizer_.parts();
  const TokenText found = parts.text_of(token);
  if (found.kind == TokenText::Kind::None || (skips_special_ && found.kind == TokenText::Kind::Special))
    return;
  std::string text;
  if (found.kind == TokenText::Kind::Byte)
    text = static_cast<char>(found.byte);
  else if (parts.decode_rules.is_byte_level)
    text = found.bytes;
  else
    text = parts.decode_rules.text_of(found.bytes, is_first_);
  is_first_ = false;
  if (strips_left_ > 0) strip(text);
  bytes += text;
}

void TokenJoiner::strip(std::string& text) {
  const std::string& stripped = tokenizer_.parts().decode_rules.stripped;
  begin_ += text;
  text.clear();
  while (strips_left_ > 0 && begin_.starts_with(stripped)) {
    begin_.erase(0, stripped.size());
    --strips_left_;
  }
  if (strips_left_ > 0 && stripped.starts_with(begin_)) return;  // more may come
  strips_left_ = 0;
  text.swap(begin_);
}

void TokenJoiner::finish(std::string& bytes) {
  bytes += begin_;
  begin_.clear();
}

Detokenizer::Detokenizer(Tokenizer tokenizer, const DecodeOptions& options)
    : tokenizer_(std::move(tokenizer)), options_(options), joiner_(tokenizer_, options) {}

std::string Detokenizer::push(TokenId token) {
  joiner_.push(token, held_);
  return release();
}

std::string Detokenizer::release() {
  std::string text;
  while (!held_.empty()) {
    const size_t valid = valid_prefix(held_);
    text.append(held_, 0, valid);
    held_.erase(0, valid);
    if (held_.size() == unfinished_suffix(held_)) break;
    replace_front(text);
  }
  return text;
}

std::string Detokenizer::finish() {
  joiner_.finish(held_);
  std::string text = release();
  while (!held_.empty()) replace_front(text);
  joiner_ = TokenJoiner(tokenizer_, options_);
  return text;
}

void Detokenizer::replace_front(std::string& text) {
  const size_t size = first_character(held_).size;
  const size_t count = tokenizer_.parts().decode_rules.byte_fallback ? size : 1;
  for (size_t i = 0; i < count; ++i) text += kReplacementCharacter;
  held_.erase(0, size);
}

}  // namespace weft::text
