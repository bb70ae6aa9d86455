// What the replicas of a plan make of a run that goes on from a recovery point. Pure: the planner and the
// simulator make their runs by it.
#pragma once

#include <cstdint>
#include <optional>

#include "broker/records.h"
#include "replicas/local_steps.h"

namespace weft::broker {

// `local`: their terms, the run's steps and where the job's inner steps begin. `point`: what they go on from.
// Theirs begin there too, but where replicas come and go, or begin with what others had, or take samples
// that are given again, or those before did: then they begin at the point.
replicas::LocalSteps go_on_from(replicas::LocalSteps local, const std::optional<CheckpointCommitted>& point,
                                bool may_grow);

}  // namespace weft::broker
