// A row of positions dealt to stages by shares of some weight, and moved until memory is respected: what the
// strategies that do not search have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "plan/partition.h"
#include "plan/proposal.h"

namespace weft::plan {

// Ends of stages so that each has about its share of the weight; each has a position at least.
// `weight_before`: by position, of all before it, and one more. `shares`: by stage, not negative. `tail`:
// where the last ends; what lies from there on is the first's. REQUIRES: no more stages than positions before
// it.
std::vector<uint32_t> deal_row(const std::vector<double>& weight_before, const std::vector<double>& shares,
                               uint32_t tail);

// Moves borders only as memory demands: first to the left, stage by stage, then to the right. Whether all
// stages fit in the end is for the caller to see.
void respect_memory(const PartitionProblem& problem, std::vector<uint32_t>& ends);

// The row dealt to devices in that order, memory respected: stages one after the other or, where the model
// has a ring that takes less time by the estimate, that. Nothing: there are more devices than positions.
using Deal = std::function<std::vector<uint32_t>(const PartitionProblem& problem)>;  // ends
std::optional<Proposal> deal_out(const Scope& scope, const std::vector<uint32_t>& order, const Deal& deal);

}  // namespace weft::plan
