// From a graph and a view of the devices to a plan: which ops form a stage, which device runs it, how many
// microbatches are under way, how long a step will take, and why. Pure: same request, same plan.
#pragma once

#include "base/result.h"
#include "plan/request.h"

namespace weft::plan {

// Errors: Infeasible, saying what lacks (devices, memory: how much where), InvalidArgument.
Result<Plan> make_plan(const PlanRequest& request);

}  // namespace weft::plan
