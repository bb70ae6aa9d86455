// Which of a link's tensors goes first: the one that the receiver's schedule needs first (plan/schedule.h).
// Pure.
#pragma once

#include <compare>
#include <cstdint>

#include "proto/messages.h"

namespace weft::peer {

// Less goes first.
//   steps ascend, and within one a training step goes before what is evaluated after it;
//   a comparison runs before the step that it is numbered by, pass by pass;
//   then as next_task chooses: the deepest segment first, microbatches ascending. Which segment of the
//   receiver reads a value its sender does not know; where two come from different segments, the one of the
//   later is read by a later one, or by the same.
struct Urgency {
  uint64_t step = 0;
  proto::ProgramKind program{};
  uint32_t pass = 0;    // of a comparison; what is not of one comes after them
  uint32_t height = 0;  // segments of the sender's program above the one that makes the value
  uint32_t microbatch = 0;
  uint32_t edge = 0;
  auto operator<=>(const Urgency&) const = default;
};

// Of a tensor that the stage of this assignment sends; an edge that it does not have counts as of its last
// segment.
Urgency urgency_of(const proto::TensorHeader& header, const proto::AssignStage& sender);

}  // namespace weft::peer
