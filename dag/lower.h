// The choices that decide bits, made once on the whole microbatch graph before it is split: which values lie
// in a blocked layout (with Reorder ops where layouts meet), and which elementwise ops run as one kernel. A
// stage border then only carries values; it never changes a kernel (SPEC, Equal bits).
#pragma once

#include "dag/backend_traits.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// The result computes the same values. Ops of one group stand next to each other; the order is again
// topological, forward before backward.
Graph lower(const Graph& graph, const OpTable& table, const BackendTraits& traits);

}  // namespace weft::dag
