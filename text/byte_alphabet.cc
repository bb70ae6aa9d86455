#include "text/byte_alphabet.h"

#include <array>

#include "text/utf8.h"

namespace weft::text {
namespace {

constexpr size_t kAlphabetEnd = 0x100 + 68;  // 68 bytes are not printable

constexpr bool stands_for_itself(unsigned byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Alphabet {
  std::array<char16_t, 256> of_byte{};
  std::array<int16_t, kAlphabetEnd> byte_of{};  // -1: none
};
constexpr Alphabet make_alphabet() {
  Alphabet alphabet;
  for (auto& byte : alphabet.byte_of) byte = -1;
  char16_t next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const char16_t code = stands_for_itself(byte) ? static_cast<char16_t>(byte) : next++;
    alphabet.of_byte[byte] = code;
    alphabet.byte_of[code] = static_cast<int16_t>(byte);
  }
  return alphabet;
}
constexpr Alphabet kAlphabet = make_alphabet();

}  // namespace

std::optional<std::string> bytes_of_token(std::string_view written) {
  std::string bytes;
  while (!written.empty()) {
    const Character character = first_character(written);
    if (character.code >= kAlphabetEnd || kAlphabet.byte_of[character.code] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte_of[character.code]);
    written.remove_prefix(character.size);
  }
  return bytes;
}

std::string written_byte(uint8_t byte) {
  std::string written;
  append_character(written, kAlphabet.of_byte[byte]);
  return written;
}

}  // namespace weft::text
