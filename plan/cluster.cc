#include "plan/cluster.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace weft::plan {

ClusterView::ClusterView(std::vector<DeviceView> devices) : devices_(std::move(devices)) {
  for (const DeviceView& device : devices_) sites_ = std::max(sites_, device.site + 1);
  between_.resize(size_t{sites_} * sites_);
}

const LinkView& ClusterView::path(size_t from, size_t to) const {
  if (!pairs_.empty())
    if (const auto own = pairs_.find(key(from, to)); own != pairs_.end()) return own->second;
  return between(devices_[from].site, devices_[to].site);
}

LinkView ClusterView::link(size_t from, size_t to) const {
  LinkView link = path(from, to);
  link.bytes_per_second = std::min({link.bytes_per_second, devices_[from].uplink, devices_[to].downlink});
  return link;
}

bool ClusterView::all_links(const std::function<bool(const LinkView&)>& are) const {
  return std::all_of(between_.begin(), between_.end(), are) &&
         std::all_of(pairs_.begin(), pairs_.end(), [&](const auto& pair) { return are(pair.second); });
}

void ClusterView::each_pair(
    const std::function<void(uint32_t from, uint32_t to, const LinkView&)>& visit) const {
  std::vector<uint64_t> keys;
  keys.reserve(pairs_.size());
  for (const auto& [pair, link] : pairs_) keys.push_back(pair);
  std::sort(keys.begin(), keys.end());
  for (const uint64_t pair : keys)
    visit(static_cast<uint32_t>(pair >> 32), static_cast<uint32_t>(pair), pairs_.at(pair));
}

std::vector<uint32_t> ClusterView::equal_in_links() const {
  std::vector<bool> has_own(devices_.size(), false);
  for (const auto& [pair, link] : pairs_) has_own[pair >> 32] = has_own[pair & 0xffffffff] = true;
  std::map<std::tuple<uint32_t, double, double>, uint32_t> first;
  std::vector<uint32_t> of;
  for (uint32_t i = 0; i < devices_.size(); ++i) {
    const DeviceView& device = devices_[i];
    of.push_back(
        has_own[i] ? i : first.try_emplace({device.site, device.uplink, device.downlink}, i).first->second);
  }
  return of;
}

ClusterView ClusterView::only(std::span<const uint32_t> devices) const {
  std::vector<DeviceView> chosen;
  for (const uint32_t device : devices) chosen.push_back(devices_[device]);
  ClusterView view(std::move(chosen));
  for (uint32_t from = 0; from < view.sites_; ++from)
    for (uint32_t to = 0; to < view.sites_; ++to) view.set_between(from, to, between(from, to));
  if (pairs_.empty()) return view;
  std::unordered_map<uint32_t, uint32_t> place;
  for (uint32_t i = 0; i < devices.size(); ++i) place[devices[i]] = i;
  for (const auto& [pair, link] : pairs_) {
    const auto from = place.find(static_cast<uint32_t>(pair >> 32)),
               to = place.find(static_cast<uint32_t>(pair));
    if (from != place.end() && to != place.end()) view.set_link(from->second, to->second, link);
  }
  return view;
}

}  // namespace weft::plan
