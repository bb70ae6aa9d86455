// Random valid graphs, made from the op table itself: elementwise ops of every row over whatever is there,
// layers with random attributes, and the cases of every op with their operands tied to the rest of the graph.
// What the shape rules accept is appended, what they refuse is drawn again. The same seed, the same graph.
#pragma once

#include <cstdint>

#include "tests/support/models.h"

namespace weft::test {

// A forward graph of some 10 to 40 ops with parameters, running statistics and a loss that hangs on all of
// it; its weights and inputs. Microbatches of kRandomGraphBatch samples.
inline constexpr int64_t kRandomGraphBatch = 4;
Model random_graph(uint64_t seed);

}  // namespace weft::test
