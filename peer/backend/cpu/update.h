// What is done to all parameters of a model at once: the optimizers' rules and the squares of gradients, each
// with one entry of the team.
#pragma once

#include <span>
#include <vector>

#include "dag/optimizer.h"
#include "peer/backend/backend.h"
#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// REQUIRES of both: everything is F32.
std::vector<double> sums_of_squares(const Team& team, const LoopTable& loops,
                                    std::span<const TensorView> sources);
void update_parameters(const Team& team, const LoopTable& loops, const dag::OptimizerSpec& optimizer,
                       const dag::UpdateStep& step, std::span<const ParameterUpdate> parameters);

}  // namespace weft::peer::cpu
