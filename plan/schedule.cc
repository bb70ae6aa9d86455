#include "plan/schedule.h"

#include <algorithm>

namespace weft::plan {

std::optional<TaskChoice> next_task(std::span<const uint32_t> done_of_segment,
                                    const std::function<bool(uint32_t, uint32_t)>& inputs_are_there,
                                    uint32_t microbatches, uint32_t in_flight_max) {
  for (auto segment = static_cast<uint32_t>(done_of_segment.size()); segment-- > 0;) {
    const uint32_t microbatch = done_of_segment[segment];
    if (microbatch >= microbatches) continue;
    if (segment > 0 && done_of_segment[segment - 1] <= microbatch) continue;
    if (segment == 0 && microbatch - done_of_segment.back() >= std::max(1u, in_flight_max)) continue;
    if (inputs_are_there(segment, microbatch)) return TaskChoice{segment, microbatch};
  }
  return std::nullopt;
}

}  // namespace weft::plan
