// How long a step takes: every task and every message played through on a clock of its own.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "plan/cluster.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"

namespace weft::plan {

// By stage, what it ran one after the other, over all simulated steps.
using TaskOrder = std::vector<std::vector<TaskChoice>>;

struct PredictRequest {
  const Pipeline* pipeline = nullptr;
  std::vector<LinkView> links;      // from stage * stage count + to stage
  uint32_t microbatches = 1;        // a step
  std::vector<uint32_t> in_flight;  // by stage
  // Nothing: each stage asks next_task. Else this order, of an earlier prediction: then a faster link or
  // device never lengthens the step (without, a task that comes early may overtake a more urgent one).
  const TaskOrder* order = nullptr;
};
struct Prediction {
  Duration step{};                // with no barrier between steps: a stage that has updated goes on
  std::vector<Duration> busy;     // by stage, computing, a step
  std::vector<Duration> sending;  // by link, a step
  TaskOrder order;                // empty when there are more microbatches than are simulated
};

// Stages that wait for each other for ever are our own mistake: CHECKs. Beyond some hundreds of microbatches
// the step is extrapolated.
Prediction predict(const PredictRequest& request);

}  // namespace weft::plan
