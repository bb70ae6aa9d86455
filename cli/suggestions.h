// What a person may have meant by a word that is no command and no option.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace weft::cli {

// Those of `known` that are written much as `word` is, the nearest first; at most three.
std::vector<std::string> nearest(std::string_view word, const std::vector<std::string>& known);
// Advice of a sentence, as "did you mean `weft jobs`?"; empty: none. Knows what other programs call things,
// too: there is no `weft train`, and two commands train.
std::string advice_on_command(std::string_view word, const std::vector<std::string>& commands);

}  // namespace weft::cli
