// The same graph in double: every float value F64. For gradient checks, and for comparing pieces with the
// whole on the reference backend, whose F32 values are doubles that a transfer as F32 would round.
#pragma once

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

Graph promote_to_f64(const Graph& graph, const OpTable& table);
// The tensor as F64 when it holds floats, else itself.
Tensor promote_to_f64(const Tensor& tensor);

}  // namespace weft::dag
