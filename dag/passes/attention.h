// Attention that is written out, as one op: what is kept for the way back are queries, keys and values, and
// no score.
#pragma once

#include <cstdint>

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

// From so many scores a head on they are worth making twice.
inline constexpr int64_t kScoresWorthFusing = int64_t{1} << 18;

// softmax(alpha q k + bias, or a number where a mask is false) v -> Attention, with each step between the two
// products there or not, where nothing else reads what lies between and a matrix has `scores_min` scores or
// more. Not where the bias is learnt. The same numbers are computed, in another order at most.
//
// A forward graph, after canonicalise().
// `known`: buffers of the graph whose numbers are what they are, as a scale that the file keeps by itself.
Graph fuse_attention(const Graph& graph, const Weights& known, int64_t scores_min, const OpTable& table);

}  // namespace weft::dag
