// Random legal cuts of a graph, for tests that compare the pieces with the whole.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/rng.h"
#include "dag/split.h"

namespace weft::test {

// Forward ops in topological order, cut at random places, then repaired so that no fusion group is cut apart:
// the forward owners of a group's ops are pulled into the group's lowest stage until nothing moves.
// May leave a stage without ops. `wrap_around`: the first stage owns the end as well.
std::vector<uint32_t> random_stages(const dag::Graph& graph, uint32_t stage_count, Rng& rng,
                                    bool wrap_around);

// The same cut, with those stages that `which` says making their forward values again in backward.
dag::Split recomputed(dag::Split split, const std::function<bool(uint32_t stage)>& which);

}  // namespace weft::test
