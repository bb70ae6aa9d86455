// How much of its uplink a peer gives to copies of its state (docs/RECOVERY.md). The plan and the peers ask
// the same function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/cluster.h"

namespace weft::plan {

// Bytes a second: as allowed (0: without limit), but a tenth of a measured uplink of which that would be more
// than half, for copies must not hold up what the step sends.
uint64_t copy_rate(uint64_t allowed, const ClusterView& cluster, size_t device);

}  // namespace weft::plan
