// Ways to spread a graph over devices. A strategy is one function: it proposes which devices form the
// pipeline, in which order, and where the cuts lie. make_plan predicts every proposal and takes the best.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "plan/proposal.h"

namespace weft::plan {

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
