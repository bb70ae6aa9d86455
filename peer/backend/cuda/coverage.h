// Which ops of a graph the cuda backend has kernels for, asked without a device: products and convolutions
// count as done by the libraries, which only a device can deny (deterministic algorithms: device.h).
#pragma once

#include <vector>

#include "base/result.h"
#include "dag/backend_traits.h"
#include "dag/graph.h"

namespace weft::peer {

// As the backend asks graphs to be lowered.
dag::BackendTraits cuda_traits();

// The ops that the host would compute, in the graph's order. `graph`: lowered with those traits.
// Errors: Unsupported for what nobody computes.
Result<std::vector<dag::OpId>> ops_on_host(const dag::Graph& graph);

}  // namespace weft::peer
