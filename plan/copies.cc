#include "plan/copies.h"

#include <algorithm>

namespace weft::plan {
namespace {

constexpr uint64_t kLeast = 1000;  // bytes a second

bool is_measured(const ClusterView& cluster, size_t device) {
  for (size_t other = 0; other < cluster.devices().size(); ++other)
    if (other != device && !cluster.path(device, other).is_assumed) return true;
  return false;
}

}  // namespace

uint64_t copy_rate(uint64_t allowed, const ClusterView& cluster, size_t device) {
  const double uplink = cluster.devices()[device].uplink;
  if (uplink == kUnlimited || !is_measured(cluster, device)) return allowed;
  if (allowed > 0 && static_cast<double>(allowed) <= uplink / 2) return allowed;
  return std::max(kLeast, static_cast<uint64_t>(uplink / 10));
}

}  // namespace weft::plan
