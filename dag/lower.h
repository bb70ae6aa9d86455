// The choices that decide bits, made once on the whole microbatch graph before it is split: which values lie
// in a blocked layout (with Reorder ops where layouts meet), and which elementwise ops run as one kernel. A
// stage border then only carries values; it never changes a kernel (SPEC, Equal bits).
#pragma once

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

struct LowerOptions {
  bool fuse_elementwise = false;
  Layout convolution_layout = Layout::Plain;
  // Bounds of one fusion group: what a kernel keeps in registers and cache.
  int group_ops_max = 24;
  int group_inputs_max = 12;
};

// The result computes the same values. Ops of one group stand next to each other; the order is again
// topological, forward before backward.
Graph lower(const Graph& graph, const OpTable& table, const LowerOptions& options);

}  // namespace weft::dag
