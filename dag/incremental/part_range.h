// Consecutive parts of an incremental model (dag/incremental/incremental.h).
#pragma once

#include <cstdint>

namespace weft::dag {

// Parts in the order in which they run: row part i is 2i, attending part i is 2i + 1. `end` is beyond the
// last.
struct PartRange {
  uint32_t begin = 0, end = 0;
  bool operator==(const PartRange&) const = default;
};

}  // namespace weft::dag
