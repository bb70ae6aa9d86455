// A graph as text, one op a line, for people and for golden tests:
//   %12 f32[8,16] = Conv(%3, %7) strides=[1,1] ...   # name
#pragma once

#include <string>

#include "dag/graph.h"

namespace weft::dag {
std::string to_text(const Graph& graph);
}  // namespace weft::dag
