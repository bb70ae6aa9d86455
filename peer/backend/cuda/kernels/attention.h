// What is done to the scores of attention between its products: of one matrix of them, row-major.
#pragma once

#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {

// Where element (row, column) lies in an operand that is broadcast to the scores.
struct ScorePlaces {
  int64_t first = 0, row = 0, column = 0;
};

// scores = alpha scores + bias, or fill where not keep.
struct AttentionScores {
  Array<float> scores;
  Array<const float> bias;    // or absent
  Array<const uint8_t> keep;  // or absent
  ScorePlaces of_bias, of_keep;
  float alpha, fill;
  uint32_t count;
  Divider columns;
};
extern const EntryOf<AttentionScores> k_attention_scores;

// From a gradient of those scores to that of what was multiplied: alpha slopes, or 0 where not keep. NaN
// becomes 0 with zero_rows: so weights of nothing do.
struct AttentionSlopes {
  Array<float> slopes;
  Array<const uint8_t> keep;  // or absent
  ScorePlaces of_keep;
  float alpha;
  int32_t zero_rows;
  uint32_t count;
  Divider columns;
};
extern const EntryOf<AttentionSlopes> k_attention_slopes;

}  // namespace weft::peer::cuda
