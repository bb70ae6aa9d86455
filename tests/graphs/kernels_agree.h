// Every kernel of a backend against the reference's arithmetic on the very same operands.
#pragma once

#include <vector>

#include "tests/backend/run_graph.h"
#include "tests/support/models.h"

namespace weft::peer {

// Expects it of each group of a graph that `run` has run, with kContext: as near as rounding and the length
// of its sums allow.
void expect_kernels_agree(const dag::Graph& graph, GraphRun& run);

// What GraphRun::run takes, of the model that the graph was made from.
std::vector<dag::Tensor> leaves_of(const dag::Graph& graph, const test::Model& model);

}  // namespace weft::peer
