// How many rows of a prompt go with each pass beside sequences that generate, so that these wait at most
// twice as long for their tokens. By what passes took: a row costs another part of a pass with each model,
// processor and number of sequences. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace weft::serve {

class PromptPace {
 public:
  explicit PromptPace(int64_t rows, int64_t rows_max = 64) : rows_(rows), rows_max_(rows_max) {}

  int64_t rows() const { return rows_; }
  // A pass with so many rows of prompts, and so many others.
  void took(int64_t prompt_rows, int64_t others, double seconds) {
    if (others == 0) return;
    if (prompt_rows == 0) {
      plain_ = plain_ == 0 ? seconds : plain_ + (seconds - plain_) * kNew;
    } else if (plain_ > 0) {
      const double row = std::max(seconds - plain_, 0.0) / static_cast<double>(prompt_rows);
      row_ = row_ == 0 ? row : row_ + (row - row_) * kNew;
      const double most = row_ > 0 ? kMore * plain_ / row_ : static_cast<double>(rows_max_);
      rows_ = static_cast<int64_t>(std::clamp(most, 1.0, static_cast<double>(rows_max_)));
    }
  }

 private:
  static constexpr double kNew = 0.25;
  // A pass may take so much more: some take longer than is known of them.
  static constexpr double kMore = 0.7;

  int64_t rows_, rows_max_;
  double plain_ = 0, row_ = 0;  // seconds of a pass without, and of a row more
};

}  // namespace weft::serve
