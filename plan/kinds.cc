#include "plan/kinds.h"

#include <algorithm>

namespace weft::plan {

std::map<std::string, std::vector<uint32_t>> kinds_of(const ClusterView& cluster) {
  std::map<std::string, std::vector<uint32_t>> kinds;
  const auto& devices = cluster.devices();
  for (uint32_t i = 0; i < devices.size(); ++i) kinds[devices[i].fingerprint].push_back(i);
  return kinds;
}

size_t largest_kind(const ClusterView& cluster) {
  size_t most = 0;
  for (const auto& [fingerprint, devices] : kinds_of(cluster)) most = std::max(most, devices.size());
  return most;
}

std::string describe_kinds(const ClusterView& cluster) {
  std::string text;
  for (const auto& [fingerprint, devices] : kinds_of(cluster)) {
    text += (text.empty() ? "" : ", ") + std::to_string(devices.size()) + " of '" + fingerprint + "' (";
    for (size_t i = 0; i < std::min(devices.size(), kNamesShown); ++i)
      text += (i ? ", " : "") + cluster.devices()[devices[i]].name;
    text += devices.size() > kNamesShown ? ", ...)" : ")";
  }
  return text;
}

}  // namespace weft::plan
