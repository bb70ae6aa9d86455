// What a job asks of the planner: one place for the broker, which plans to run, and for `weft plan`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "configs/job.h"
#include "dag/graph.h"
#include "dag/lower.h"
#include "plan/replicas.h"
#include "replicas/terms.h"

namespace weft::train {

// Unsupported, with its place: something that `weft local` computes and peers do not.
Status check_for_peers(const configs::Job& job);
// Of replicas with local steps: they agree about float32 alone. Of others that must be several: what
// keeps them from it. `training`: the job's graph.
Status check_agreed(const configs::Job& job, const dag::Graph& training);

// Without a cluster and without pins, which name what is in one. `graph`: prepared from the job
// (train/prepare.h), outlives the request. `classes`: as each class of the cluster's devices runs it.
// `copy_rate`: bytes a second of an uplink that copies of the state may take (0: without limit); nothing:
// none are made.
plan::PlanRequest plan_request(const configs::Job& job, const dag::Graph& graph,
                               std::vector<std::shared_ptr<const dag::Lowered>> classes,
                               std::optional<uint64_t> copy_rate);
// Tensors that replicas with local steps keep beside each parameter to agree (PlanRequest::agreed_slots); 0:
// these are none.
uint32_t agreed_slots(const replicas::ReplicaTerms& terms);
// Whether replicas with local steps may agree about parts of a tensor: the job's codec, or one that it lets
// the planner choose, needs no whole ones (compress::is_by_parts).
bool may_divide_tensors(const configs::Job& job);
// All replicas of a job that may have several; nothing: it is one pipeline. `pipeline`: as above, of
// one of them, with the devices of all.
std::optional<plan::ReplicasRequest> replicas_request(const configs::Job& job,
                                                      const plan::PlanRequest& pipeline);

// How many replicas that add each step's gradients the job may have; 1: it has none such.
uint32_t exact_replicas_max(const configs::Job& job);
// Whether these, where there are several, leave the optimizer's slots of a parameter to its owner.
bool shares_slots(const configs::Job& job);
// Why replicas that would add each step's gradients are one pipeline, whoever is there; empty: they may be
// several, or the job has none. `training`: the graph that is trained.
std::string describe_one_pipeline(const configs::Job& job, const dag::Graph& training);

// What replicas with local steps would gain over that plan of one pipeline, in words for people; empty:
// little, or the job cannot have them as it is, or no device holds the model alone. `pipeline`: what the plan
// was made from; `training`: the graph that is trained.
std::string describe_replicas_gain(const configs::Job& job, const dag::Graph& training,
                                   const plan::PlanRequest& pipeline, const plan::Plan& plan);

}  // namespace weft::train
