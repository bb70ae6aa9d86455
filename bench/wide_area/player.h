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
#include "plan/replicas.h"
#include "replicas/terms.h"

namespace weft::bench {

struct PlayOptions {
  uint32_t steps = 4;        // of rounds: how many of these
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

struct PlayedRounds {
  std::vector<Duration> ends{};  // of each round: when the last stage has done the last of its inner steps
  uint64_t steps = 0;            // of the run, which all replicas together make in these rounds
  // What is waited for after the last round: from the last update of any stage until all have agreed.
  Duration agreement{};
  // Of a round, on average and all told, as they travel: between stages of one replica, and between replicas.
  int64_t bytes_between_stages = 0, bytes_of_agreement = 0;
};
// Replicas that make local steps, from nothing under way and to the agreement of the last round, which is
// waited for. Differences and means pass the same lines as activations, at the same time; what they take to
// compute, and the way to the broker and back, is nothing. `terms`: count and shares are the plan's.
// Errors: as play. REQUIRES: terms.are_local(), a plan for local steps in which nobody follows.
Result<PlayedRounds> play_rounds(const Model& model, const plan::ReplicasPlan& plan,
                                 const replicas::ReplicaTerms& terms, const plan::ClusterView& cluster,
                                 const PlayOptions& options);

}  // namespace weft::bench
