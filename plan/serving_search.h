// Internal to plan/serving: which devices stand in the ring, and in which order.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "plan/serving_cuts.h"

namespace weft::plan {

struct FoundRing {
  std::vector<uint32_t> order{};  // devices of the cluster, the entry first
  RingCuts cuts{};
};

// The best of some of the devices with caches for so many positions on each. Exact where there are few
// devices; else the best of what a search with bounded effort meets. Of equal ones that with fewer stages.
std::optional<FoundRing> find_best_ring(const RingProblem& problem, const ServingRequest& request,
                                        std::span<const uint32_t> devices, uint64_t positions);

}  // namespace weft::plan
