// In which order the gradients of a step's microbatches are added, which decides bits. The microbatches are
// dealt to `ranges` contiguous ranges of equal length; within a range gradients are added one by one, in
// ascending order; the ranges' sums are added in ascending order: for two ranges of four microbatches
// ((m0 + m1) + (m2 + m3)). That is how as many replicas of a stage add, each with a range of its own; who
// runs all of them alone ends in the same bits. One range: one by one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

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

// Neighbouring ranges of a step, which one replica computes.
struct RangeShare {
  uint32_t first = 0, count = 1;
  auto operator<=>(const RangeShare&) const = default;
};
// `ranges`: by replica, how many. REQUIRES: it has the replica.
inline RangeShare share_of(std::span<const uint32_t> ranges, uint32_t replica) {
  RangeShare share{0, ranges[replica]};
  for (uint32_t before = 0; before < replica; ++before) share.first += ranges[before];
  return share;
}

// The same for a replica that computes its share alone. Those from the first range on it adds up as everybody
// does. Of others each is a sum of its own, for nobody else may begin in the middle.
// REQUIRES: the microbatch is in the share, and its ranges are among all.
inline GradientTurn gradient_turn(uint32_t microbatch, uint32_t microbatches, uint32_t ranges,
                                  const RangeShare& share) {
  const GradientTurn turn = gradient_turn(microbatch, microbatches, ranges);
  return share.first == 0 ? turn : GradientTurn{.begins_range = turn.begins_range};
}

// As which sums the share goes to whoever adds all of them up: what begins with the first range is one sum,
// under the number 0; others go range by range.
inline bool is_sent_as(const RangeShare& share, uint32_t range) {
  return share.first == 0 ? range == 0 : range >= share.first && range - share.first < share.count;
}
// The one of these sums that is complete with the microbatch. REQUIRES: as above.
inline std::optional<uint32_t> sum_completed(uint32_t microbatch, uint32_t microbatches, uint32_t ranges,
                                             const RangeShare& share) {
  const uint32_t length = microbatches / ranges, range = microbatch / length;
  if (microbatch % length != length - 1) return std::nullopt;
  if (share.first > 0) return range;
  return range + 1 == share.count ? std::optional<uint32_t>(0) : std::nullopt;
}

}  // namespace weft::dag
