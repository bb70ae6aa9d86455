// Ops that users want on a peer of theirs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dag/graph.h"

namespace weft::plan {

// As a user says it. `ops`: an op's name; the beginning of the names of some; "inputs", what reads the
// model's inputs; or "labels", what reads the labels and makes the loss.
struct PinRule {
  std::string ops, peer;
};

// What comes of a rule.
struct Pin {
  std::string ops;            // as in the rule, for people
  std::vector<dag::OpId> of;  // forward ops of the graph that is planned; not empty
  uint32_t device = 0;        // into the cluster
};

// The same in a row of positions: the stage of that device has all of these.
struct PinnedRange {
  uint32_t device = 0;
  uint32_t first = 0, last = 0;
};

}  // namespace weft::plan
