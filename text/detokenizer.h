// Tokens to text, one token at a time.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace weft::text {

struct DecodeOptions {
  bool skips_special = true;    // control tokens have no text
  bool continues_text = false;  // there is text before: a blank at the begin is one, not SentencePiece's mark
};

// The bytes of tokens, one after the other.
class TokenJoiner {
 public:
  TokenJoiner(Tokenizer tokenizer, const DecodeOptions& options);
  void push(TokenId token, std::string& bytes);
  // What it held back: a begin of what is stripped from the text's begin.
  void finish(std::string& bytes);

 private:
  void strip(std::string& text);

  Tokenizer tokenizer_;
  bool skips_special_;
  bool is_first_;
  size_t strips_left_;
  std::string begin_;  // of the text, while it may have to be stripped
};

// The text of tokens as they come. What it has given out together is what it gives for all at once, and each
// part of it is whole characters. What cannot become one is U+FFFD, as in Hugging Face's library: one for the
// longest part that could begin a character, or one for each byte where the vocabulary has tokens for bytes
// (there the library replaces valid characters, too, that stand beside such a byte). Holds at most 3 bytes
// back. Belongs to one thread.
class Detokenizer {
 public:
  explicit Detokenizer(Tokenizer tokenizer, const DecodeOptions& options = {});

  // The text that is certain with this token; empty while a character is not whole.
  std::string push(TokenId token);
  // What was held back. The next text begins.
  std::string finish();

 private:
  std::string release();
  void replace_front(std::string& text);

  Tokenizer tokenizer_;
  DecodeOptions options_;
  TokenJoiner joiner_;
  std::string held_;
};

}  // namespace weft::text
