// Who computes what when: one step of a plan from a standing start, by the rule that peers follow
// (plan::next_task). Each stage's forward and backward count as one task a microbatch, as the plan has them.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cluster.h"
#include "plan/request.h"

namespace weft::cli {

struct TimelineTask {
  double begin = 0, end = 0;  // seconds
  uint32_t microbatch = 0;
  bool backward = false;
};
struct Timeline {
  std::vector<std::vector<TimelineTask>> stages;  // each in order of time
  uint32_t microbatches = 0;                      // shown: the first of a long step
  double seconds = 0;                             // until the last of them is done
};

// At most `tasks_max` tasks, but at least one microbatch.
Timeline make_timeline(const plan::Plan& plan, const plan::ClusterView& cluster, uint32_t microbatches,
                       size_t tasks_max = 4000);

}  // namespace weft::cli
