// What a cut of a graph into stages makes, before any piece is built: in which segment each op runs, and
// which values cross. The planner predicts with it, split() builds with it.
//
// A cut is made in the whole graph as it was before lowering; each stage then runs its ops as they are in the
// whole graph lowered for the stage's class of devices. So the kernels of a stage do not depend on where the
// cuts lie, and what crosses is named the same at both ends, whatever layout either has it in.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/graph.h"
#include "dag/lower.h"

namespace weft::dag {

struct CutRequest {
  const Graph* graph = nullptr;
  std::span<const uint32_t> stage_of_op;
  std::span<const Lowered* const> classes;   // `graph` for each class of devices
  std::span<const uint32_t> class_of_stage;  // indices into `classes`; a stage may be without ops
};

struct Crossing {
  ValueId value;  // once for each stage that reads it and does not make it
  uint32_t from_stage = 0, to_stage = 0;
  uint32_t from_segment = 0, to_segment = 0;  // makes it; reads it first
};

struct Cut {
  // Segments of a stage run in ascending order, forward before backward: each needs nothing but what earlier
  // ones made and what came from other stages.
  struct Stage {
    uint32_t segments = 0;
    uint32_t forward_segments = 0;  // the first so many
  };
  std::vector<Stage> stages;
  std::vector<uint32_t> segment_of_op;  // a leaf runs with its first reader of the stage, before it is sent
  std::vector<Crossing> crossings;      // by value, then to_stage
};

// By op: leaves that travel with the graph rather than over a link: constants, buffers, frozen initializers.
std::vector<bool> copied_leaves(const Graph& graph);

// Errors: InvalidArgument when sizes do not match, a group of a stage's class is cut apart, or groups of
// different classes wait for each other.
Result<Cut> cut(const CutRequest& request);

}  // namespace weft::dag
