// Byte pair encoding (Sennrich, Haddow, Birch: "Neural machine translation of rare words with subword units",
// ACL 2016): a piece of text begins as its characters, or its bytes; of the pairs that stand side by side,
// the one of lowest rank becomes one token, the leftmost first, until none merges. The results are those of
// Hugging Face's `tokenizers`, their order of tokens for unknown characters as well.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/merge_table.h"
#include "text/vocabulary.h"

namespace weft::text {

struct BpeOptions {
  bool is_byte_level = false;        // a piece begins as its bytes, each a token of the vocabulary
  bool byte_fallback = false;        // a character that is no token becomes tokens <0x00> to <0xFF>
  bool ignore_merges = false;        // a piece that is a token is that one, whatever the merges say
  bool fuse_unknown = false;         // unknown characters side by side become one unknown token
  std::optional<TokenId> unknown{};  // without one they become nothing
  // By id: tokens that no plain text becomes, whatever the merges say; control tokens. May be shorter.
  std::vector<bool> never{};

  bool is_never(TokenId token) const { return token < never.size() && never[token]; }
};

// Never changes; read by any threads.
class Bpe {
 public:
  // REQUIRES: no merge leads to a token of `options.never`.
  Bpe(Vocabulary vocabulary, MergeTable merges, BpeOptions options);

  // Appends the tokens of a piece of n bytes: O(n log n) steps, and O(n) memory above some bytes.
  // REQUIRES: fewer than 2^31 bytes.
  void encode(std::string_view piece, std::vector<TokenId>& tokens) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }
  const BpeOptions& options() const { return options_; }
  // A text may be cut before a mark, and its parts encoded each by itself, unless one of these characters
  // stands before the mark: no token of the vocabulary has another one there. Nothing: it may not be cut so.
  std::optional<std::vector<std::string>> joined_before(std::string_view mark) const;

 private:
  void append_symbols(std::string_view piece, std::vector<TokenId>& symbols) const;
  bool append_fallback(std::string_view character, std::vector<TokenId>& symbols) const;
  void merge(std::vector<TokenId>& tokens, size_t first) const;
  void merge_few(std::vector<TokenId>& tokens, size_t first) const;
  void merge_many(std::vector<TokenId>& tokens, size_t first) const;
  void find_whole_tokens();

  static constexpr TokenId kNone = UINT32_MAX;
  Vocabulary vocabulary_;
  MergeTable merges_;
  BpeOptions options_;
  std::array<TokenId, 256> of_byte_;      // byte level: the byte's; else the ASCII character's
  std::array<TokenId, 256> fallback_of_;  // <0x00> to <0xFF>
  std::vector<bool> is_whole_;            // by token: its own text is encoded to it alone
};

}  // namespace weft::text
