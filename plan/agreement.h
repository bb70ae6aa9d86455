// What it takes replicas to agree: each sends what it has learnt of a tensor to the tensor's owner, which
// sends the mean back to each.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "plan/cluster.h"
#include "plan/request.h"

namespace weft::plan {

struct AgreedLoad {
  Bytes bytes{};                    // of a difference as it is written, and of the mean
  std::vector<uint32_t> devices{};  // by replica, of the cluster: who has it; never empty
  uint32_t owner = 0;               // a replica
  Bytes kept{};                     // that the owner alone has beside it
  uint32_t fragment = 0;            // those of another one travel at another time
};

// Gives each an owner: the largest first, to the replica whose device then has least to take in, by what its
// line carries.
// `followers`, ascending, own none: they have yet to be given what the others have. `room`, by device, bytes:
// where there is any, an owner is one that has room for what it keeps, or else the one with most left.
void deal_owners(const ClusterView& cluster, std::span<AgreedLoad> tensors,
                 const std::vector<uint32_t>& followers = {}, std::vector<int64_t> room = {});
// Bytes a second that a device takes in, at the best that one of the others lets it have.
double rate_to(const ClusterView& cluster, uint32_t device, const std::vector<uint32_t>& others);

// First all differences, then all means: as long as the busiest line or link takes, and a latency each way.
double agreement_seconds(const ClusterView& cluster, std::span<const AgreedLoad> tensors);
// By input of the graph, what a microbatch of it takes as it travels (dag/narrow.h). Whole numbers are taken
// for places in something that the graph has: two bytes each, unless some value is longer than that can say.
std::vector<Bytes> data_bytes(const dag::Graph& graph);
// Of the devices of one pipeline that whose downlink takes longest for a step's samples, and how long.
struct DataLine {
  uint32_t device = 0;
  double seconds = 0;
};
// `plan`: of a request with that graph, so many microbatches a step, on devices of the cluster.
DataLine data_line(const ClusterView& cluster, const dag::Graph& graph, uint32_t microbatches,
                   const Plan& plan);
// By device of the cluster: how long all that an agreement brings to it takes over its downlink.
std::vector<double> incoming_seconds(const ClusterView& cluster, std::span<const AgreedLoad> tensors);

}  // namespace weft::plan
