// The peers of replicas that a run goes on without.
#pragma once

#include <string>

#include "broker/jobs/job.h"
#include "broker/pool/pool.h"

namespace weft::broker {

// Whether everybody who has a part in the run can agree without one of the others.
bool can_leave_out(const PlannedRun& plan, const Pool& pool);
// Those whose replicas are absent have no part in the run any more: they may take one in what comes next.
// They are told why. REQUIRES: it runs.
void let_go_left_out(Job& job, Pool& pool, const std::string& why);
// After a restart: they have none.
void forget_left_out(proto::JobNumber job, phase::Running& at, Pool& pool);

}  // namespace weft::broker
