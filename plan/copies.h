// How much of its uplink a peer gives to copies of its state (docs/design/recovery.md). The plan and the
// peers ask the same function.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plan/cluster.h"

namespace weft::plan {

// Copies give way to tensors: while some wait for the uplink, copies go at this part of their rate.
inline constexpr int kCopiesYield = 20;

// Bytes a second while nothing else waits for the uplink: as allowed (0: without limit), but at most four
// fifths of a measured one, so that a tensor finds the line free, or nearly so.
uint64_t copy_rate(uint64_t allowed, const ClusterView& cluster, size_t device);

}  // namespace weft::plan
