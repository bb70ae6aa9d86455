// Plans that differ from one in a single thing.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/proposal.h"

namespace weft::plan {

// A border one or two positions further, the tail's of a ring too; two stages that change devices; a stage
// that goes to one of `idle` (of many the first ones); where their number may change, a stage that its
// neighbour takes over, and a stage that is cut in two with one of `idle`; of a short row, positions next to
// each other that any other stage takes. In a fixed order, each legal.
std::vector<Proposal> neighbours(const Proposal& of, const Model& model, bool number_may_change,
                                 std::span<const uint32_t> idle);

}  // namespace weft::plan
