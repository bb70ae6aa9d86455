#include "plan/schedule.h"

namespace weft::plan {

std::optional<TaskChoice> next_task(std::span<const uint32_t> done_of_segment,
                                    const std::function<bool(uint32_t, uint32_t)>& inputs_are_there,
                                    uint32_t microbatches, uint32_t in_flight_max) {
  return choose_task(done_of_segment, inputs_are_there, microbatches, in_flight_max);
}

}  // namespace weft::plan
