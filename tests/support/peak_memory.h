// How much memory a piece of code holds at most, counted by operator new: the program that links
// peak_memory.cc counts. What comes from malloc or calloc by itself is not seen.
#pragma once

#include <cstddef>

#include "tests/support/sanitized.h"

namespace weft::test {

inline constexpr bool kCountsMemory = !kIsSanitized;  // else operator new is the sanitizer's

// From its making on; one at a time. 0 where nothing is counted.
class PeakMemory {
 public:
  PeakMemory();
  size_t bytes() const;  // held at once, of what was not held before

 private:
  size_t before_;
};

}  // namespace weft::test
