// Tokens that are found in a text before anything else is done to it: control tokens above all.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/token.h"

namespace weft::text {

inline constexpr size_t kAddedTokenSizeMax = 256;  // bytes

struct AddedToken {
  std::string content;
  TokenId id = 0;
  std::string decoded{};        // its text
  bool is_special = false;      // control: no text of a user's is ever taken for it
  bool is_single_word = false;  // not where a word goes on beside it
  bool takes_left = false;      // the blanks before it belong to it
  bool takes_right = false;     // those behind it
  bool is_normalized = false;   // looked for in the normalized text
};

// A part of a text: a token, or text between tokens.
struct AddedPart {
  std::string_view text;
  std::optional<TokenId> token;
};

// The tokens that are looked for together. Never changes; used by any threads.
class AddedTokens {
 public:
  AddedTokens() = default;
  // Of equal contents the first holds. REQUIRES: contents of 1 to kAddedTokenSizeMax bytes.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  bool empty() const { return tokens_.empty(); }
  const AddedToken* find(std::string_view content) const;

  // The parts of the text, in order; the longest token counts where several begin. At most kAddedTokenSizeMax
  // steps a byte. `with_special` false: special tokens are text. The parts view `text`.
  std::vector<AddedPart> split(std::string_view text, bool with_special) const;

 private:
  const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;  // by content
  std::array<bool, 256> begins_{};  // with this byte
};

}  // namespace weft::text
