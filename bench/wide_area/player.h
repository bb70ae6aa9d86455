// A plan played on a virtual clock: each stage is the production state machine with the piece of the graph
// that a peer would get, and every tensor passes the production models of its sender's uplink, of what lies
// between, and of its receiver's downlink. Nothing is computed: a task takes what a null device of those
// rates takes for it. Shares no arithmetic with plan::predict but what a kernel takes: the one is the other's
// check.
#pragma once

#include <cstdint>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "bench/wide_area/model.h"
#include "plan/cluster.h"
#include "plan/plan.h"

namespace weft::bench {

struct PlayOptions {
  uint32_t steps = 4;
  uint32_t tasks_ahead = 2;  // as peer/service has it
};
struct Played {
  std::vector<Duration> step_ends;  // of each step: when its last stage has updated
  Duration step{};                  // of the last ones: the first is left out, for it finds nothing under way
  int64_t bytes_per_step = 0;  // of tensors between stages, all told, as they travel: headers and TLS too
};
// Errors: those of dag::split; Internal, saying which stage, when the stages wait for each other for ever.
Result<Played> play(const Model& model, const plan::Plan& plan, const plan::ClusterView& cluster,
                    const PlayOptions& options = {});

}  // namespace weft::bench
