// How tokens become text again: the decoder of a tokenizer file.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace weft::text {

// The byte that a token <0x00> to <0xFF> stands for; nothing for others.
std::optional<uint8_t> byte_of_fallback(std::string_view token);

struct DecodeRules {
  bool is_byte_level = false;  // the tokens' bytes stand side by side; nothing else holds
  bool byte_fallback = false;  // <0x00> to <0xFF> are bytes
  std::vector<std::pair<std::string, std::string>> replacements;  // in each token, one after the other
  std::string stripped;                                           // at the begin of the whole text ...
  size_t stripped_max = 0;                                        // ... so often at most
  std::string first_without;                                      // the first token loses all of these

  // ByteLevel; Metaspace; a Sequence of Replace, ByteFallback, Metaspace, Fuse and Strip, in an order in
  // which they can be carried out token by token. Unsupported: another, by its name.
  static Result<DecodeRules> parse(const nlohmann::json& decoder);

  // A token's text by the replacements. `is_first`: of the whole text.
  std::string text_of(std::string_view token, bool is_first) const;
};

}  // namespace weft::text
