// A stage that keeps nothing of its forward pass but what it was given, as a graph: backward reads values
// that it makes again. So an executor needs to know nothing of it, and the memory plan finds what is saved by
// lifetimes. Kernels, operands and draws are those of the first time, so the bits are, too.
#pragma once

#include <vector>

#include "dag/graph.h"
#include "dag/op_table.h"
#include "dag/split.h"

namespace weft::dag {

// By value: whether an op of the forward pass makes it, and would make the same once the pass is over. What
// hangs on an initializer that the pass changes would not; a BatchNorm's output hangs on its batch alone. What
// is made once a step (dag/once_a_step.h) is there anyway, and does not count.
std::vector<bool> repeatable_values(const Graph& graph);

// Of one stage of a split. Each backward segment begins with copies of the forward groups that make what it
// reads, and what they read in turn, down to inputs, received values, initializers and what cannot be
// repeated. The copies are ops of phase Backward whose origin is the op that they repeat; their other outputs
// (a new running statistic) are read by nobody. Segments stay, and edges name the stage's values as they are
// now.
void recompute(Split& split, uint32_t stage, const OpTable& table);

}  // namespace weft::dag
