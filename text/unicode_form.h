// Unicode's normalization forms, and lower case: the door to utf8proc.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace weft::text {

// Unicode Standard Annex 15, of Unicode 9 as Hugging Face's library has it (unicode_ages.h).
enum class UnicodeForm : uint8_t { NFC, NFD, NFKC, NFKD };

// What is no UTF-8 stays as it is. O(n log n) steps for n bytes, whatever they are. The text becomes at most
// 11 times as long (NFKC and NFKD of U+FDFA), or 3 times (NFC, NFD).
std::string normalize(std::string_view text, UnicodeForm form);

// Each character by itself, with no regard to its neighbours, as Rust's char::to_lowercase.
std::string lower_case(std::string_view text);

}  // namespace weft::text
