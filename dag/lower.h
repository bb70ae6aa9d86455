// The choices that decide bits, made once on the whole microbatch graph before it is split: which values lie
// in a blocked layout (with Reorder ops where layouts meet), and which elementwise ops run as one kernel. A
// stage border then only carries values; it never changes a kernel (SPEC, Equal bits).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dag/backend_traits.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// A graph as one class of devices runs it, and how to find in it what it was made from: its source.
struct Lowered {
  Graph graph;
  // By op of `graph`: the op of the source that it is. For a Reorder that was put in where layouts meet: the
  // op that reads it first, or, when nobody does, that makes what it shows.
  std::vector<OpId> source_op;
  std::vector<bool> put_in;       // by op of `graph`: such a Reorder
  std::vector<OpId> op_of;        // by op of the source
  std::vector<ValueId> value_of;  // by value of the source: where its maker's copy puts it
};

// The result computes the same values. Ops of one group stand next to each other; the order is again
// topological, forward before backward.
Graph lower(const Graph& graph, const OpTable& table, const BackendTraits& traits);
// The same, and what came from where. Ops of different parts never share a group and keep the order of their
// parts; empty: the graph is one part. REQUIRES: parts ascend in the order of ops.
Lowered lower_traced(const Graph& graph, const OpTable& table, const BackendTraits& traits,
                     std::span<const uint32_t> part_of_op = {});
// The graph as it is, its own source.
Lowered as_it_is(Graph graph);
// The graph before it was lowered: no groups, every value plain, no Reorder. `value_of`: by value of `graph`.
Graph raise(const Graph& graph, const OpTable& table, std::vector<ValueId>& value_of);

}  // namespace weft::dag
