// Reverse-mode differentiation, graph to graph: the result is an ordinary graph whose Backward ops are from the
// same closed set, so that a peer can run any part of it, and `split` cuts forward and backward alike.
#pragma once

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// `graph` with, for every initializer of role Parameter that the loss depends on, an output of role Gradient that
// holds d loss / d parameter for one microbatch.
//
// The terms of a value's cotangent are added from left to right in reverse topological order of the value's users
// (operand order within a user): an order fixed here, before any split, which is what makes the sums' bits independent
// of the cut. Ops that no output needs are dropped.
//
// Errors: InvalidArgument when there is no scalar output of role Loss; Unsupported, naming every op at once, when
// a cotangent reaches an op without a vjp.
Result<Graph> differentiate(const Graph& graph, const OpTable& table);

// Copies `graph` without the ops that no output depends on.
Graph prune(const Graph& graph, const OpTable& table);

}  // namespace weft::dag
