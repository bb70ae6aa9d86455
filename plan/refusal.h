// Why there is no plan: what is wrong with a request, and what lacks where nothing fits.
#pragma once

#include "base/result.h"
#include "plan/evaluator.h"
#include "plan/request.h"

namespace weft::plan {

// InvalidArgument for a request that makes no sense, whatever the cluster.
Status check_request(const PlanRequest& request);
// Infeasible where the number of stages that it asks for cannot be, whatever they hold.
Status check_stages(const PlanRequest& request, const Model& model);
// REQUIRES: nothing that was evaluated fits.
Error why_nothing_fits(const Evaluator& evaluator);

}  // namespace weft::plan
