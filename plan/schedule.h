// Which task a stage runs next. The prediction and the peers ask the same function, so that what is predicted
// is what happens.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace weft::plan {

struct TaskChoice {
  uint32_t segment = 0;
  uint32_t microbatch = 0;
  bool operator==(const TaskChoice&) const = default;
};

// 1F1B by rule. Within a segment microbatches run in ascending order; a microbatch's segment runs after all
// of its earlier ones; among segments that can run the last one goes first (deepest in backward: it frees
// memory); a microbatch enters its first segment only while fewer than `in_flight_max` (at least 1) are
// between their first segment and the end of their last.
//
// done_of_segment: by segment, how many microbatches of this step have finished it; never ascending.
// inputs_are_there(segment, microbatch): whether all that this segment receives from outside has come.
// Nothing: nothing can run now, or all is done. Never deadlocks as long as every sent value arrives:
// microbatch by microbatch, what the lowest unfinished one needs can always run.
template <typename InputsAreThere>
std::optional<TaskChoice> choose_task(std::span<const uint32_t> done_of_segment,
                                      const InputsAreThere& inputs_are_there, uint32_t microbatches,
                                      uint32_t in_flight_max) {
  for (auto segment = static_cast<uint32_t>(done_of_segment.size()); segment-- > 0;) {
    const uint32_t microbatch = done_of_segment[segment];
    if (microbatch >= microbatches) continue;
    if (segment > 0 && done_of_segment[segment - 1] <= microbatch) continue;
    if (segment == 0 && microbatch - done_of_segment.back() >= (in_flight_max > 1 ? in_flight_max : 1))
      continue;
    if (inputs_are_there(segment, microbatch)) return TaskChoice{segment, microbatch};
  }
  return std::nullopt;
}
// The same, for those who ask seldom.
std::optional<TaskChoice> next_task(std::span<const uint32_t> done_of_segment,
                                    const std::function<bool(uint32_t, uint32_t)>& inputs_are_there,
                                    uint32_t microbatches, uint32_t in_flight_max);

}  // namespace weft::plan
