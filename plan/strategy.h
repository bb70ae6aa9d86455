// Ways to spread a graph over devices. A strategy is one function: it proposes which devices form the
// pipeline, in which order, and where the cuts lie. make_plan predicts every proposal and takes the best.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/model.h"
#include "plan/plan.h"

namespace weft::plan {

// What a strategy is asked for: `stages` of the request's devices, of these alone.
struct Scope {
  const PlanRequest* request = nullptr;
  const Model* model = nullptr;
  const Model* coarse = nullptr;  // the same graph with few positions, to compare orders of devices
  std::vector<uint32_t> devices;  // indices into the cluster
  uint32_t stages = 1;
  bool tight = false;  // what was proposed before turned out too large for the devices' memory
};
struct Proposal {
  std::vector<uint32_t> devices;  // by stage
  std::vector<uint32_t>
      ends;          // by stage: the position behind its last; ascending, the last is model->positions
  double score = 0;  // seconds a step by the strategy's own estimate
};
// Best first; empty when it finds none that fits in memory. Proposals may still turn out too large.
using Strategy = std::vector<Proposal> (*)(const Scope& scope);

struct NamedStrategy {
  std::string_view name;  // the option's value
  Strategy propose = nullptr;
  std::string_view about;
};
std::span<const NamedStrategy> strategies();

// Contiguous cuts that balance compute and transfer by dynamic programming, on the orders of devices that
// promise most.
std::vector<Proposal> propose_balanced(const Scope& scope);

}  // namespace weft::plan
