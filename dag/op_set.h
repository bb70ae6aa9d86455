// Which ops a program knows, as one number: it grows with every op that is added. Who plans for others gives
// none of them an op of a later set than theirs.
#pragma once

#include <cstdint>

#include "dag/op_kind.h"

namespace weft::dag {

class Graph;

// That of this program. Who says nothing knows the first: they are of before the number.
inline constexpr uint32_t kOpSet = 3;
inline constexpr uint32_t kFirstOpSet = 1;

// The first that has the op, or all ops of a graph.
uint32_t op_set_of(OpKind kind);
uint32_t op_set_of(const Graph& graph);
// An op of the graph that is of the last of its sets; Input where it has none.
OpKind newest_op(const Graph& graph);

}  // namespace weft::dag
