// How far a training script's tasks are handed out: of which command, and within it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "peer/machine/task.h"

namespace weft::peer {

struct Given {
  size_t command = 0;
  uint64_t step = 0;                   // the last whose update was handed out
  std::vector<uint32_t> microbatches;  // by segment, of the step or forward pass under way
  bool squares = false, updated = false;
  std::optional<TaskKind> agreed{};  // the last task of the agreement that follows it
  uint64_t skipped = 0;              // steps of the run so far
  uint32_t passes = 0;               // of a comparison

  void end_step() {
    ++step;
    if (!updated) ++skipped;  // it made none
    microbatches.clear();
    squares = updated = false;
    agreed.reset();
  }
  // Of an agreement: Differ, Mean, Agree.
  TaskKind next_of_agreement() const {
    if (!agreed) return TaskKind::Differ;
    return agreed == TaskKind::Differ ? TaskKind::Mean : TaskKind::Agree;
  }
  bool has_begun_to_agree(uint64_t after) const { return step + 1 == after && agreed.has_value(); }
  // Whether, after that step, something may lie in the means that the stage takes, or was agreed on.
  bool is_too_late(uint64_t after, bool takes_means) const {
    return step >= after || (has_begun_to_agree(after) && agreed == TaskKind::Mean && takes_means);
  }
};

}  // namespace weft::peer
