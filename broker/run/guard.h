// Judges from comparisons with dense links whether codecs hurt what is learned. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "proto/messages.h"

namespace weft::broker {

struct GuardOptions {
  uint32_t comparisons_min = 2;
  double loss_max = 0.01;  // (compressed - dense) / dense, at most
  // ||compressed - dense|| / ||dense|| of one microbatch's gradient, at most: GPTs that ended one percent
  // above dense links had 0.3, half a percent 0.2, nine percent 0.4 (docs/RESULTS.md).
  double gradient_max = 0.3;
};

class Guard {
 public:
  explicit Guard(GuardOptions options = {}) : options_(options) {}

  // Links have other codecs from now on.
  void begin() { *this = Guard(options_); }
  // One more. What is too much, in words, or nothing: of means over comparisons_min and more, the last count
  // most. A number that is not finite is too much at once, unless the dense one is not finite either.
  std::optional<std::string> judge(const proto::LinkComparison& comparison);

 private:
  GuardOptions options_;
  uint32_t count_ = 0;
  double loss_ = 0, gradient_ = 0;  // smoothed
};

}  // namespace weft::broker
