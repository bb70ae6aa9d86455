// Who guesses the next tokens of a served model at its entry (serve/draft.h).
#pragma once

#include <cstdint>

namespace weft::plan {

enum class DraftKind : uint8_t {
  None = 0,
  Ngram = 1,    // repetition in the text
  Coin = 2,     // guesses that are right with some probability, where a backend computes nothing: for benches
  Decoder = 3,  // a small model of the same tokens
};

}  // namespace weft::plan
