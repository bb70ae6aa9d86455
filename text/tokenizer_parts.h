// What a tokenizer is made of.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decode_rules.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/token.h"

namespace weft::text {

// A token as a decoder sees it.
struct TokenText {
  enum class Kind : uint8_t {
    None,  // no token has this id
    Text,
    Byte,  // <0x00> to <0xFF>, where they are bytes
    Special,
  };
  Kind kind = Kind::None;
  std::string_view bytes;
  uint8_t byte = 0;  // of Kind::Byte
};

struct TokenizerParts {
  std::optional<Bpe> bpe;  // none: a token is a byte
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  DecodeRules decode_rules;
  AddedTokens added;                    // found in the text as it comes
  AddedTokens added_normalized;         // found in the normalized text
  std::vector<AddedToken> all_added;    // by id
  std::vector<TokenId> before, behind;  // the frame of each text
  std::vector<TokenId> end_tokens;
  size_t vocabulary_size = 256;

  const AddedToken* added_by_id(TokenId token) const;
  TokenText text_of(TokenId token) const;
};

}  // namespace weft::text
