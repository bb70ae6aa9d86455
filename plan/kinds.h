// Devices by fingerprint: those of one kind give equal bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "plan/cluster.h"

namespace weft::plan {

inline constexpr size_t kNamesShown = 8;  // of devices, in words

std::map<std::string, std::vector<uint32_t>> kinds_of(const ClusterView& cluster);
size_t largest_kind(const ClusterView& cluster);
// "2 of 'cuda' (a, b), 1 of 'cpu' (c)"
std::string describe_kinds(const ClusterView& cluster);

}  // namespace weft::plan
