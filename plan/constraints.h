// What users ask of a placement beside speed: ops that stay where they want them.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/follow.h"
#include "plan/pin.h"
#include "plan/proposal.h"

namespace weft::plan {

// InvalidArgument for ops that the graph does not have; Infeasible for a peer that is not in the cluster.
Result<Pin> resolve_pin(const PinRule& rule, const dag::Graph& graph, const ClusterView& cluster);

// Whether every pinned op is in the stage of its device. `devices`: by stage.
bool keeps_pins(std::span<const Pin> pins, const std::vector<uint32_t>& stage_of_op,
                const std::vector<uint32_t>& devices);

// Where the pins leave the ops of another graph of the job, for plan/follow.h. `devices`: by stage. Of a rule
// that says nothing of that graph none.
std::vector<StageFloor> floors_of(std::span<const PinRule> rules, const dag::Graph& other,
                                  const ClusterView& cluster, const std::vector<uint32_t>& devices);

std::vector<PinnedRange> pinned_ranges(std::span<const Pin> pins, const Model& model);
bool keeps_ranges(std::span<const PinnedRange> ranges, const std::vector<uint32_t>& devices,
                  const std::vector<uint32_t>& ends);

// The proposals changed so that they keep the scope's ranges, as little as may be: a pinned device takes the
// stage that has most of what it must have, and the borders beside it give way. When `searching`, the best
// borders for such an order as well. Those that cannot be, and doubles, are left out. Best first by `score`,
// as before where nothing is pinned.
std::vector<Proposal> within_ranges(const Scope& scope, std::vector<Proposal> proposals, bool searching);

// Why no row of stages keeps the request's pins. Empty: it is not for them.
std::string why_not_kept(const PlanRequest& request, const Model& model);

// "inputs on a, labels on b".
std::string describe_pins(std::span<const Pin> pins, const ClusterView& cluster);

}  // namespace weft::plan
