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
  // A way to do without a search, to compare with: all devices (unless a number of stages is asked for),
  // 1F1B, and of several proposals the one in the middle.
  bool is_baseline = true;
};
std::span<const NamedStrategy> strategies();  // the default first
const NamedStrategy* find_strategy(std::string_view name);

// Cuts that balance compute and transfer, on the orders of devices that promise most: of a row and, where
// something ties its ends (plan/ring.h), of a ring. The default starts from these, and from what the others
// propose.
std::vector<Proposal> propose_balanced(const Scope& scope);
// plan/op_fence.cc
std::vector<Proposal> propose_op_fence(const Scope& scope);
// plan/baselines.cc: parts of equal weight in five random orders, or in the order in which devices joined.
std::vector<Proposal> propose_equal_ops(const Scope& scope);
std::vector<Proposal> propose_equal_compute(const Scope& scope);
std::vector<Proposal> propose_equal_memory(const Scope& scope);
std::vector<Proposal> propose_equal_ops_joining(const Scope& scope);

}  // namespace weft::plan
