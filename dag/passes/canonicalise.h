// Passes that turn what an exporter wrote into what was meant: the same mathematics in fewer, semantic ops,
// before autodiff. Each is a pure function of a graph and keeps inputs, initializers with their names, and
// outputs.
#pragma once

#include "base/result.h"
#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// All passes below in their order, then prune. Applying it twice changes nothing more. The graph is a forward
// graph as an importer builds it (no Backward ops). Never fails for a well-formed graph; the Result is room
// for passes that do.
Result<Graph> canonicalise(const Graph& graph, const OpTable& table);

// Reshape of Reshape, Transpose of Transpose become one; those that change nothing vanish, as do Expand,
// Cast, Slice, Concat and Pad that change nothing.
Graph simplify_shapes(const Graph& graph, const OpTable& table);

// (x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * scale + bias over trailing dims -> LayerNorm. Scale
// and bias are taken in when they have the normalised dims' shape.
Graph fuse_layer_norm(const Graph& graph, const OpTable& table);

// 0.5 x (1 + erf(x / sqrt 2)) and 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), in any order of factors ->
// Gelu.
Graph fuse_gelu(const Graph& graph, const OpTable& table);

// A Transpose whose last act is to swap the last two dims, and which feeds a MatMul, becomes the MatMul's
// flag; what remains of it keeps the innermost dim in place.
Graph fuse_transposes(const Graph& graph, const OpTable& table);

}  // namespace weft::dag
