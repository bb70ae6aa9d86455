#include "plan/free_links.h"

#include <utility>
#include <vector>

namespace weft::plan {

ClusterView with_free_links(const ClusterView& cluster) {
  constexpr double kFreeBytesPerSecond = 1e18;
  std::vector<DeviceView> devices = cluster.devices();
  for (DeviceView& device : devices) {
    device.uplink = device.downlink = kUnlimited;
    device.site = 0;
  }
  ClusterView view(std::move(devices));
  if (view.site_count() > 0) view.set_between(0, 0, {.bytes_per_second = kFreeBytesPerSecond, .latency = {}});
  return view;
}

}  // namespace weft::plan
