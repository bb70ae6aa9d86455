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
  const auto most = std::max(kLeast, static_cast<uint64_t>(0.8 * uplink));
  return allowed > 0 ? std::min(allowed, most) : most;
}

}  // namespace weft::plan
