// A row whose ends belong together: a tied embedding is read at both, and of stages cut one after the other
// each passes it on, and its gradient back, for every microbatch. One stage may own both ends instead. So it
// is where inputs and labels are to stay on one device.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "plan/crossing.h"
#include "plan/pin.h"

namespace weft::plan {

struct Model;

struct Ring {
  // The first stage owns at least the positions before `head_end` and those from `tail_max` on.
  uint32_t head_end = 0;
  uint32_t tail_max = 0;
  std::vector<uint32_t> tails;  // where its second part may well begin, the most promising first; not empty
  // As the model's, without what is made in the one of those pieces for the other: it stays in the stage.
  Crossing crossing;
  int64_t waiting = 0;  // bytes of a microbatch that the one piece keeps for the other
};

// Nothing: no value is read at both ends, or nothing near the end but the values themselves would cross
// there.
std::optional<Ring> find_ring(const Model& model);
// Of ends that users want on one device, whatever crosses, and of the model's own where both can be. Nothing:
// no device is to have two pieces with something in between.
std::optional<Ring> find_ring(const Model& model, std::span<const PinnedRange> pinned);

}  // namespace weft::plan
