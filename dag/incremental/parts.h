// Internal to dag/incremental: which op runs in which part, and what passes between them. Pure.
#pragma once

#include <map>
#include <vector>

#include "dag/incremental/analysis.h"

namespace weft::dag::incremental {

// Parts in the order in which they run: even ones compute rows, odd ones attend.
struct Parts {
  static constexpr uint32_t kNone = UINT32_MAX;  // free, or nobody needs it
  uint32_t count = 0;
  std::vector<uint32_t> of_op;
  // By a value that is looked at by keys: the value of which its cache holds the rows. The ops between the
  // two move elements and no more.
  std::map<ValueId, ValueId> cached;
  struct Interface {
    std::vector<ValueId> inputs, outputs;  // ascending
    std::vector<ValueId> caches;           // values as they are kept
  };
  std::vector<Interface> interfaces;  // by part
};

// `logits`: a value with a row, and no key. Errors: Unsupported for pairs that would pass from part to part.
Result<Parts> make_parts(const Analysis& analysis, ValueId tokens, ValueId logits);

}  // namespace weft::dag::incremental
