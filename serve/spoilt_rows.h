// Rows of a pass that are not finite: a request's own, of which the model makes numbers that are none, or
// whatever a stage makes that is broken or lies.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "base/result.h"
#include "serve/pass.h"

namespace weft::serve {

// Sequences of which a row has a NaN or +Inf; -Inf is how scores are masked.
std::vector<uint64_t> spoilt_sequences(const Pass& pass);

// Whether the stage before this one is to blame. A model may make NaN of one text, and that request ends at
// the entry. Of two within a few passes the stage is at fault that sends them: it is the first that was not
// sent any such itself, for it would have named the one before it.
class SpoiltRows {
 public:
  static constexpr uint64_t kPasses = 16;

  // Each pass as it comes. Errors: Corrupted, for the second sequence.
  Status look_at(const Pass& pass);

 private:
  uint64_t passes_ = 0;
  std::map<uint64_t, uint64_t> spoilt_;  // sequences, by when their rows were last spoilt
};

}  // namespace weft::serve
