// From a graph and a view of the devices to a plan: which ops form a stage, which device runs it, how many
// microbatches are under way, how long a step will take, and why. Pure: same request, same plan.
#pragma once

#include "base/result.h"
#include "plan/model_cache.h"
#include "plan/request.h"
#include "plan/search_options.h"

namespace weft::plan {

// Errors: Infeasible, saying what lacks (devices, memory: how much where), InvalidArgument.
Result<Plan> make_plan(const PlanRequest& request);
// The same with another search, and for those who plan one graph several times.
Result<Plan> make_plan(const PlanRequest& request, const SearchOptions& options, ModelCache& models);

}  // namespace weft::plan
