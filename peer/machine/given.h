// How far a training script's tasks are handed out: of which command, and within it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace weft::peer {

struct Given {
  size_t command = 0;
  uint64_t step = 0;                   // the last whose update was handed out
  std::vector<uint32_t> microbatches;  // by segment, of the step or forward pass under way
  bool squares = false, updated = false;
  uint64_t skipped = 0;  // steps of the run so far
  uint32_t passes = 0;   // of a comparison

  void end_step() {
    ++step;
    if (!updated) ++skipped;  // it made none
    microbatches.clear();
    squares = updated = false;
  }
};

}  // namespace weft::peer
