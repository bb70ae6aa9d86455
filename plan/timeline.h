// Who computes what when: the first step of a prediction, from a standing start.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"

namespace weft::plan {

struct TimelineTask {
  Duration begin{}, end{};  // since the step began
  uint32_t microbatch = 0;
  bool is_backward = false;
};
struct Timeline {
  std::vector<std::vector<TimelineTask>>
      stages;                 // each in order of time; tasks that take no time are left out
  uint32_t microbatches = 0;  // that were simulated: the first ones of a long step
};

}  // namespace weft::plan
