// What a copy of a job's state sends: the bytes of dag::trained_state.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "dag/slots.h"

namespace weft::dag {

// Parameters with a gradient, each with its optimizer's slots, and running statistics. Frozen weights,
// buffers and parameters that nothing trains are in no copy: whoever takes over has them from the model's
// file. `training`: a stage's graph, or the whole one.
Bytes copied_bytes(const Graph& training, const BesideParameter& beside);
// By stage, of a graph whose ops several have. REQUIRES: each stage is less than `stages`.
std::vector<Bytes> copied_bytes(const Graph& training, const BesideParameter& beside,
                                std::span<const uint32_t> stage_of_op, uint32_t stages);

}  // namespace weft::dag
