// A row of positions dealt to stages by shares of some weight, and moved until memory is respected: what the
// strategies that do not search have in common.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/partition.h"

namespace weft::plan {

// Ends of stages so that each has about its share of the weight; each has a position at least.
// `weight_before`: by position, of all before it, and one more. `shares`: by stage, not negative.
// REQUIRES: no more stages than positions.
std::vector<uint32_t> deal_row(const std::vector<double>& weight_before, const std::vector<double>& shares);

// Moves borders only as memory demands: first to the left, stage by stage, then to the right. Whether all
// stages fit in the end is for the caller to see.
void respect_memory(const PartitionProblem& problem, std::vector<uint32_t>& ends);

}  // namespace weft::plan
