// How long a step takes: every task and every message played through on a clock of its own.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "plan/cluster.h"
#include "plan/critical_path.h"
#include "plan/pipeline.h"
#include "plan/schedule.h"
#include "plan/timeline.h"

namespace weft::plan {

// What was decided while a step was played through, by stage: the tasks in the order in which they ran, the
// messages (indices into the pipeline's) in the order in which they came in. Over all simulated steps.
struct PlayedOrder {
  std::vector<std::vector<TaskChoice>> tasks;
  std::vector<std::vector<uint32_t>> arrivals;
  bool empty() const { return tasks.empty(); }
};

struct PredictRequest {
  const Pipeline* pipeline = nullptr;
  const ClusterView* cluster = nullptr;
  std::vector<uint32_t> devices;    // by stage: indices into the cluster
  uint32_t microbatches = 1;        // a step
  std::vector<uint32_t> in_flight;  // by stage
  // Nothing: stages update when they are done. Else no stage updates before the last one has done its
  // microbatches and this much has passed: the round trip of a gradient's norm.
  std::optional<Duration> norm_round_trip{};
  // Nothing: each stage asks next_task, messages are taken in as they come. Else this order, of an earlier
  // prediction: then a faster link or device never lengthens the step (without, what comes early may overtake
  // something more urgent).
  const PlayedOrder* order = nullptr;
  // By stage: bytes a second of its uplink that copies of its state take; empty: none are made. REQUIRES:
  // less than the uplink.
  std::vector<double> copying{};
  bool records_path = false;  // also what the step's end waited for
  bool step_only = false;     // only Prediction::step is wanted
  // From this length of a step on nobody cares how long it takes: predicted is then some step of at least
  // this length, and nothing else. REQUIRES: step_only.
  std::optional<Duration> give_up_at{};
};

struct Prediction {
  Duration step{};             // with no barrier between steps: a stage that has updated goes on
  std::vector<Duration> busy;  // by stage, computing, a step
  struct Sending {
    uint32_t from_stage = 0, to_stage = 0;
    Duration busy{};  // what lies between the two, a step
  };
  std::vector<Sending> sending;            // ordered by sender, receiver
  std::vector<Duration> uplink, downlink;  // by stage: how long its lines are busy, a step; copies aside
  std::vector<CriticalShare> critical;     // if recorded: together the step
  PlayedOrder order;                       // empty when there are more microbatches than are simulated
  Timeline timeline;
};

// Each message passes the sender's uplink, what lies between the two, and the receiver's downlink: all three
// at the same time, in each one after the other, as fast as the slowest lets it. Data come over the downlink
// of the stage that reads them, ahead of need as peers ask for them, wherever the broker is. Stages that wait
// for each other for ever are our own mistake: CHECKs. Beyond some hundreds of microbatches the step is
// extrapolated.
Prediction predict(const PredictRequest& request);
// What the busiest stage, line or link has to do in a step: no step is shorter, whatever is in flight.
Duration least_step(const PredictRequest& request);

}  // namespace weft::plan
