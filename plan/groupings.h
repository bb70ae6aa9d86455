// Ways to deal devices to replicas, each a group of its own.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/request.h"

namespace weft::plan {

using Group = std::vector<uint32_t>;  // devices of the cluster, ascending
using Groups = std::vector<Group>;    // by replica, by their first device

// By device of the cluster: how often a second it would compute the graph's microbatch, memory aside.
std::vector<double> speeds_of(const PlanRequest& request);

// Of these devices: contiguous parts of a row in which neighbours stand together, of about equal speed, and
// of about equal memory; fast ones with slow ones, wherever they are; and whole communities, where there are
// enough. Each device is in one group, each group has `least` devices at least where it can. No grouping is
// there twice. REQUIRES: count * least devices at least.
std::vector<Groups> propose_groups(const PlanRequest& request, const std::vector<double>& speeds,
                                   const std::vector<uint32_t>& devices, uint32_t count, uint32_t least);

}  // namespace weft::plan
