// The small graphs by which a device's rates are found (peer/service/measure.h).
#pragma once

#include <functional>
#include <vector>

#include "dag/graph.h"
#include "plan/device.h"

namespace weft::peer {

struct UnitProblem {
  plan::Unit unit;
  double plan::UnitRates::*field;  // what the graph's time tells once those before it are known
  std::function<dag::Graph(int64_t times)> graph;  // with so many times the work
  bool grows = false;                              // until a run takes long enough
  bool updates = false;                            // the update is timed, not the graph
};
// In the order in which they build on each other.
std::vector<UnitProblem> unit_problems();

// Many kernels of several kinds with hardly any work; how many.
dag::Graph small_kernels(int64_t& count);

}  // namespace weft::peer
