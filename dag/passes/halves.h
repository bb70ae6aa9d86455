// Half precision on devices that compute in float32.
#pragma once

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

enum class HalfWeights : uint8_t {
  AsInFile,  // they hold the file's numbers, and outputs are of the file's type: inference
  Masters,   // they hold float32 numbers that training changes: each forward pass rounds them
};

// The graph with every F16 and BF16 value as F32, and a RoundToHalf where the file rounds: behind values with
// a name, which are the file's own. What has no name is inside of an operator, and stays as wide as it is
// computed. Inputs keep their type, and a Cast behind them widens; initializers become F32 and are given as
// halves or as F32 (peer/state.h). Running statistics that the graph updates are never rounded, or small
// changes would be lost. With AsInFile a Cast before each output narrows; with Masters outputs are F32, for a
// cotangent would be rounded on its way through such a Cast.
//
// A forward graph, after canonicalise(): its patterns are those of the file. A graph without halves is
// returned as it is.
Graph widen_halves(const Graph& graph, const OpTable& table, HalfWeights weights);

}  // namespace weft::dag
