// In which segment each group of a program runs, and what is done with its values once they are there.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dag/graph.h"
#include "peer/program.h"

namespace weft::peer {

// The segment of groups that run before a step's first microbatch.
inline constexpr uint32_t kOnceAStep = UINT32_MAX;

struct GroupWork {
  uint32_t segment = 0;
  std::vector<std::pair<dag::ValueId, uint32_t>> state_updates;  // value -> initializer
  std::vector<uint32_t> gradients;                               // gradient slots that it completes
  std::vector<Program::Copy> copies;
};

// By group. `segment_of_op`: empty where all are of segment 0.
std::vector<GroupWork> work_of_groups(const dag::Graph& graph, const Program& program,
                                      std::span<const uint32_t> segment_of_op);

// By gradient slot, the segment with which a microbatch's gradient is in its sum.
std::vector<uint32_t> segments_of_gradients(const std::vector<GroupWork>& work, const Program& program);

}  // namespace weft::peer
