// What a job says of peers by name, applied to a cluster.
#pragma once

#include "base/result.h"
#include "cli/plan_cluster.h"
#include "cli/plan_job.h"

namespace weft::cli {

// Takes the peers that the job excludes out of the cluster, and pins its ops to others. `complete`: the
// cluster has all there are, so that a name it lacks is an error; else it is noted. Errors, with the place in
// the job: NotFound for such a name, InvalidArgument for ops that the model does not have, Infeasible where
// nobody is left.
Status apply_placement(PlannedJob& job, PlanCluster& cluster, bool complete);

// The first of it alone.
Status exclude_peers(const configs::Job& job, PlanCluster& cluster, bool complete);

}  // namespace weft::cli
