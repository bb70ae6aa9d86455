// Random groups of elementwise ops, as one kernel and op by op: the same values, and on a backend that keeps
// what dag/lower.h promises the same bits. The same seed, the same group.
#pragma once

#include <cstdint>
#include <vector>

#include "dag/graph.h"

namespace weft::test {

struct RandomGroup {
  dag::Graph apart, fused;  // with the same inputs and outputs
  std::vector<dag::Tensor> inputs;
};
RandomGroup random_group(uint64_t seed);

}  // namespace weft::test
