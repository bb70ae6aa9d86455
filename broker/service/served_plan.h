// The planning of a job that serves: its model's parts are costed, a ring is found, its stages are assigned.
#pragma once

#include <memory>

#include "base/result.h"
#include "broker/events.h"
#include "broker/service/job_context.h"

namespace weft::broker {

// Errors: Infeasible when these candidates cannot run it, anything else when nobody can. REQUIRES: a context
// of a job that serves.
Result<std::shared_ptr<const PlannedRun>> plan_served(const JobContext& context,
                                                      const StartPlanning& request);

}  // namespace weft::broker
