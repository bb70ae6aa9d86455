// Ops whose results hang on trained weights alone: they need to run once for each step, not once for each of
// its microbatches.
#pragma once

#include <vector>

#include "dag/graph.h"

namespace weft::dag {

// By op: whether it rounds a weight that this graph trains (dag/passes/halves.h). Nothing else counts, though
// more would give the same numbers: what runs once keeps its result from step to step. Such an op is alone in
// its group. Without a gradient of the weight, as in evaluation, a rounding runs where it is read and keeps
// nothing.
std::vector<bool> once_a_step(const Graph& graph);

}  // namespace weft::dag
