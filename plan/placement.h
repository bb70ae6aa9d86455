// In which order devices form a pipeline.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/partition.h"
#include "plan/proposal.h"

namespace weft::plan {

// The partition problem of `model` on those devices in that order, with 1F1B's microbatches in flight.
PartitionProblem partition_problem(const PlanRequest& request, const Model& model,
                                   const std::vector<uint32_t>& order);

// The same of a ring. REQUIRES: the model has one; two devices at least; one of its borders.
PartitionProblem ring_problem(const PlanRequest& request, const Model& model,
                              const std::vector<uint32_t>& order, uint32_t tail);
// Where a proposal's last stage ends before the row does, that of a ring.
PartitionProblem problem_of(const PlanRequest& request, const Model& model, const Proposal& proposal);

// Estimated seconds of a step: all stages once, and the bottleneck for every further microbatch.
double estimate(const StageCost& cost, uint32_t microbatches);

// Orders of scope.stages of the scope's devices, most promising first, a few at most. Up to eight devices
// every order is looked at (equal devices are not told apart); beyond, regions follow each other by
// bandwidth, the fastest devices of each first. `as_ring`: for a ring, from the first of the coarse model's
// tails; without one, none.
std::vector<std::vector<uint32_t>> device_orders(const Scope& scope, bool as_ring = false);

}  // namespace weft::plan
