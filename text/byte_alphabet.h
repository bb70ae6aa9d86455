// The characters by which GPT-2's byte-level vocabularies write bytes: printable ones stand for themselves,
// the others for U+0100 and on, in their order (bytes_to_unicode in OpenAI's gpt-2 repository).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::text {

// The bytes that a token is written for. Nothing: it has a character that stands for no byte.
std::optional<std::string> bytes_of_token(std::string_view written);

// The character that stands for a byte, as UTF-8.
std::string written_byte(uint8_t byte);

}  // namespace weft::text
