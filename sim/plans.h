// What the simulated broker plans: runs of simulated jobs, assembled for real.
#pragma once

#include <memory>

#include "sim/model.h"

namespace weft::sim {

// How the job's replicas agree, where it has any; their number and their shares are a plan's.
replicas::ReplicaTerms replica_terms_of(const JobSpec& job);
// What such replicas agree about: the trained weights, by number.
std::vector<std::string> agreed_names(const ModelGraphs& graphs);
// Of each of them, in which part of the model it is that is agreed about at a time.
std::vector<uint32_t> fragments_of(const JobSpec& job);

// A run of the job as it is assembled for a real one (broker/place/assembly.h); the plan is a simple one: of
// one kind of candidates, from the one numbered `first` on. `secret`: what tickets and keys are drawn from.
Result<std::shared_ptr<const broker::PlannedRun>> plan_run(const JobSpec& job,
                                                           const broker::StartPlanning& request,
                                                           uint64_t secret, uint64_t copy_rate,
                                                           uint64_t first = 0);

// The same with those of the candidates with whom a step takes least, by what the request knows of links.
Result<std::shared_ptr<const broker::PlannedRun>> plan_by_pace(const JobSpec& job,
                                                               const broker::StartPlanning& request,
                                                               uint64_t secret, uint64_t copy_rate);

}  // namespace weft::sim
