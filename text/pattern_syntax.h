// The regular expressions of tokenizer files are Oniguruma's; PCRE2 runs them.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace weft::text {

inline constexpr size_t kExpressionMax = 4096;  // bytes

// The expression as PCRE2 has to be given it, in UTF and UCP mode, to match what Oniguruma's default syntax
// matches (https://github.com/kkos/oniguruma/blob/master/doc/RE): \s, \w, \h and \b mean other characters
// there. Classes, alternatives, repetition, groups that catch nothing, (?i:...) and looking around are
// understood. Unsupported, by name: back references, recursion, callouts, conditions, verbs, sets within
// classes, and whatever else the two read differently. OutOfRange: longer than kExpressionMax.
Result<std::string> to_pcre2(std::string_view expression);

}  // namespace weft::text
