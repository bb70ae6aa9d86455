// What the stages of a plan are given, as broker/service/planner.cc makes it, without tensors and routes; and
// what a device takes for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "bench/wide_area/model.h"
#include "plan/device.h"
#include "plan/plan.h"
#include "plan/replicas.h"
#include "proto/stage.h"
#include "replicas/local_steps.h"

namespace weft::bench {

using Assignments = std::vector<std::shared_ptr<proto::AssignStage>>;

// By stage, of one pipeline that makes so many steps. Errors: those of dag::split.
Result<Assignments> assignments_of(const Model& model, const plan::Plan& plan, uint64_t steps);
// By replica, and of each by stage, of replicas that make local steps. Errors: likewise.
// REQUIRES: terms of as many replicas as the plan has.
Result<Assignments> assignments_of(const Model& model, const plan::ReplicasPlan& plan,
                                   const replicas::LocalSteps& local);

// As the executor of a null device counts it (peer/executor.cc, peer/backend/null).
struct StageSeconds {
  std::vector<double> segments;    // of a microbatch
  std::vector<double> accumulate;  // and of each but the first of a step
  double update = 0;
};
StageSeconds seconds_of(const proto::StageProgram& program, const plan::Rates& rates, uint32_t slots);

}  // namespace weft::bench
