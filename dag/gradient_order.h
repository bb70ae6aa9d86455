// In which order the gradients of a step's microbatches are added, which decides bits. The microbatches are
// dealt to `ranges` contiguous ranges of equal length; within a range gradients are added one by one, in
// ascending order; the ranges' sums are added in ascending order: for two ranges of four microbatches
// ((m0 + m1) + (m2 + m3)). That is how as many replicas of a stage add, each with a range of its own; who
// runs all of them alone ends in the same bits. One range: one by one.
#pragma once

#include <cstdint>

namespace weft::dag {

// What becomes of one microbatch's gradients.
struct GradientTurn {
  bool first_range = true;   // of those whose sum becomes the step's
  bool begins_range = true;  // they begin their range's sum; else they are added to it
  bool joins_first = false;  // with them a later range is complete: its sum is added to the first one's
  auto operator<=>(const GradientTurn&) const = default;
};

// REQUIRES: ranges at least 1, dividing microbatches; microbatch below microbatches.
inline GradientTurn gradient_turn(uint32_t microbatch, uint32_t microbatches, uint32_t ranges) {
  const uint32_t length = microbatches / ranges;
  const bool first_range = microbatch < length;
  return {.first_range = first_range,
          .begins_range = microbatch % length == 0,
          .joins_first = !first_range && microbatch % length == length - 1};
}

}  // namespace weft::dag
