// What a training graph makes of running statistics (BatchNorm's), apart from its other ops. Each microbatch
// has *fresh* values, which hang on no running statistic: a share of its mean, and of its variance. A few ops
// blend them into what the statistic was. So whoever has the fresh values of all microbatches can blend them
// in, one microbatch after the other, and comes to the bits of one machine that ran them all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dag/graph.h"
#include "dag/op_table.h"

namespace weft::dag {

struct FreshStatistic {
  std::string name;             // the initializer's
  std::vector<ValueId> values;  // of the graph, ascending: all of one type
  std::vector<OpId> blending;   // in order: the ops that read the statistic, or what became of it
  DType dtype = DType::F32;     // of the values
  int64_t count = 0;            // elements of all of them, at least one
};

// Of each statistic that the graph updates, in the order of its outputs. Nothing: they cannot be told apart
// from the rest, for another op reads one, an output shows it, or its new value hangs on something that does
// not come from a microbatch.
std::optional<std::vector<FreshStatistic>> fresh_statistics(const Graph& graph);

// The blending alone. Its inputs are named by fresh_input(), its outputs are state updates.
// REQUIRES: `statistics` are of the graph.
Graph blending_graph(const Graph& graph, const std::vector<FreshStatistic>& statistics, const OpTable& table);
std::string fresh_input(ValueId value);

}  // namespace weft::dag
