// A PlannedRun as messages and back: how it is stored, and how it comes from the process that planned it.
// Each stage's assignment is a message of its own.
#pragma once

#include <memory>
#include <vector>

#include "broker/run/planned_run.h"
#include "proto/messages.h"

namespace weft::broker {

proto::RunPlan to_message(const PlannedRun& run);  // REQUIRES: a stage
// As many assignments as the plan has stages, at least one, which say the same of local steps as the plan:
// else nullptr.
std::shared_ptr<const PlannedRun> from_message(proto::RunPlan plan,
                                               std::vector<proto::Encoded<proto::AssignStage>> assignments);

}  // namespace weft::broker
