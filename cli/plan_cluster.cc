#include "cli/plan_cluster.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/client.h"
#include "configs/catalogue.h"
#include "configs/cluster.h"

namespace weft::cli {
namespace {

struct Addition {
  configs::CatalogueDevice device;
  std::string region;
};

Result<std::vector<Addition>> parse_additions(std::span<const std::string> texts) {
  std::vector<Addition> additions;
  for (const std::string& text : texts) {
    const size_t at = text.find('@');
    if (at == std::string::npos || at == 0 || at + 1 == text.size())
      return fail(ErrorCode::InvalidArgument,
                  "--add wants TYPE@REGION, as rtx3080@oregon, not '" + text.substr(0, 80) + "'");
    auto device = configs::find_device(text.substr(0, at));
    if (!device) return fail(device.error().within("--add " + text.substr(0, 80)));
    additions.push_back({*device, text.substr(at + 1)});
  }
  return additions;
}

// "TYPE-N" that no device has.
std::string free_name(const std::set<std::string>& names, std::string_view type) {
  for (int number = 1;; ++number)
    if (std::string name = std::string(type) + "-" + std::to_string(number); !names.contains(name))
      return name;
}

Error no_devices(const std::string& source, const std::string& advice) {
  return {ErrorCode::Infeasible, source + " has no devices to plan for: " + advice};
}

// Of a link of which the broker says nothing.
plan::LinkView assumed_link(const std::string& from_region, const std::string& to_region) {
  if (!from_region.empty() && from_region == to_region)
    return {.bytes_per_second = 1.25e9, .latency = std::chrono::microseconds(500), .is_assumed = true};
  return {.bytes_per_second = 12.5e6, .latency = std::chrono::milliseconds(20), .is_assumed = true};
}

plan::DeviceView device_of(const proto::PeerStatus& peer) {
  return {.name = peer.name,
          .region = peer.region,
          .owner = peer.owner,
          .rates = peer.rates,
          .memory = peer.memory,
          .fingerprint = peer.device};
}

plan::DeviceView device_of(const Addition& addition, std::string name) {
  return {.name = std::move(name),
          .region = addition.region,
          .rates = configs::rates_of(addition.device.peak_fp32_flops, addition.device.memory_bandwidth),
          .memory = addition.device.memory,
          .fingerprint = addition.device.name};
}

}  // namespace

Result<PlanCluster> cluster_of_file(const std::filesystem::path& path,
                                    std::span<const std::string> additions) {
  WEFT_TRY(configs::Cluster cluster, configs::load_cluster(path));
  WEFT_TRY(const auto added, parse_additions(additions));
  std::set<std::string> names;
  for (const auto& device : cluster.devices) names.insert(device.name);
  for (const Addition& addition : added) {
    WEFT_TRY_STATUS(configs::link_between(cluster, addition.region, addition.region));
    const std::string& type = addition.device.name;
    cluster.devices.push_back({.name = free_name(names, type),
                               .type = type,
                               .region = addition.region,
                               .owner = {},
                               .peak_fp32_flops = addition.device.peak_fp32_flops,
                               .peak_tf32_flops = addition.device.peak_tf32_flops,
                               .peak_bf16_flops = addition.device.peak_bf16_flops,
                               .memory = addition.device.memory,
                               .memory_bandwidth = addition.device.memory_bandwidth,
                               .uplink = {},
                               .downlink = {}});
    names.insert(cluster.devices.back().name);
  }
  if (cluster.devices.empty())
    return fail(no_devices(path.string(), "list some under `devices`, or --add TYPE@REGION"));
  PlanCluster result{path.string(), configs::view(cluster), {}};
  for (const configs::ClusterDevice& device : cluster.devices) result.types.push_back(device.type);
  return result;
}

namespace {

// Sites as the broker has them, then one for each region of the devices that it says nothing of.
void set_sites(std::vector<plan::DeviceView>& devices, const std::vector<const proto::LinkEnd*>& ends) {
  uint32_t next = 0;
  for (const proto::LinkEnd* end : ends)
    if (end != nullptr) next = std::max(next, end->site + 1);
  std::map<std::string, uint32_t> sites;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (ends[i] == nullptr) {
      const auto [at, fresh] = sites.try_emplace(devices[i].region, next);
      next += fresh ? 1 : 0;
      devices[i].site = at->second;
      continue;
    }
    devices[i].site = ends[i]->site;
    if (ends[i]->uplink > 0) devices[i].uplink = ends[i]->uplink;
    if (ends[i]->downlink > 0) devices[i].downlink = ends[i]->downlink;
  }
}

plan::LinkView link_of(const proto::LinkFigure& figure) {
  return {
      .bytes_per_second = figure.bytes_per_second, .latency = figure.latency, .is_assumed = figure.assumed};
}

void set_links(plan::ClusterView& view, const std::vector<const proto::LinkEnd*>& ends,
               const proto::LinkList& links) {
  std::map<uint32_t, std::string> regions;
  for (const plan::DeviceView& device : view.devices()) regions.emplace(device.site, device.region);
  for (const auto& [a, from] : regions)
    for (const auto& [b, to] : regions) view.set_between(a, b, assumed_link(from, to));
  for (const proto::LinkFigure& figure : links.between)
    if (regions.contains(figure.from) && regions.contains(figure.to))
      view.set_between(figure.from, figure.to, link_of(figure));
  std::map<uint32_t, size_t> device_of_end;
  for (size_t i = 0; i < ends.size(); ++i)
    if (ends[i] != nullptr) device_of_end[static_cast<uint32_t>(ends[i] - links.ends.data())] = i;
  for (const proto::LinkFigure& figure : links.links) {
    const auto from = device_of_end.find(figure.from), to = device_of_end.find(figure.to);
    if (from == device_of_end.end() || to == device_of_end.end()) continue;
    if (view.path(from->second, to->second) != link_of(figure))
      view.set_link(from->second, to->second, link_of(figure));
  }
}

std::vector<std::string> link_notes(const plan::ClusterView& view, bool are_known) {
  const size_t count = view.devices().size();
  if (count < 2) return {};
  if (!are_known)
    return {"links are assumed, not measured: 10 Gbit/s within a region, 100 Mbit/s between others"};
  size_t assumed = 0;
  for (size_t from = 0; from < count; ++from)
    for (size_t to = 0; to < count; ++to) assumed += from != to && view.path(from, to).is_assumed ? 1 : 0;
  if (assumed == 0) return {};
  return {std::to_string(assumed) + " of " + std::to_string(count * (count - 1)) +
          " links were never measured: weft peers --links shows which, and what they are taken as"};
}

}  // namespace

Result<PlanCluster> cluster_of_peers(std::span<const proto::PeerStatus> peers, const std::string& source,
                                     std::span<const std::string> additions, const proto::LinkList& links) {
  WEFT_TRY(const auto added, parse_additions(additions));
  std::map<PeerId, const proto::LinkEnd*> end_of;
  for (const proto::LinkEnd& end : links.ends) end_of[end.peer] = &end;
  std::vector<plan::DeviceView> devices;
  std::vector<const proto::LinkEnd*> ends;  // by device; null: the broker says nothing of its links
  std::vector<std::string> types;
  std::set<std::string> names;
  for (const proto::PeerStatus& peer : peers) {
    if (peer.state != "pool" && peer.state != "active") continue;
    devices.push_back(device_of(peer));
    const auto end = end_of.find(peer.peer);
    ends.push_back(end == end_of.end() ? nullptr : end->second);
    names.insert(peer.name);
    types.push_back("");
  }
  for (const Addition& addition : added) {
    devices.push_back(device_of(addition, free_name(names, addition.device.name)));
    ends.push_back(nullptr);
    names.insert(devices.back().name);
    types.push_back(addition.device.name);
  }
  if (devices.empty())
    return fail(no_devices(source, "no peer is there; let some join, or --add TYPE@REGION"));
  set_sites(devices, ends);
  plan::ClusterView view(std::move(devices));
  set_links(view, ends, links);
  auto notes = link_notes(view, !links.ends.empty());
  return PlanCluster{source, std::move(view), std::move(notes), std::move(types)};
}

Result<PlanCluster> cluster_of_broker(const BrokerOptions& broker, std::span<const std::string> additions) {
  WEFT_TRY(auto access, BrokerAccess::open(broker));
  WEFT_TRY(const auto client, access->connect());
  WEFT_TRY(const auto list, client->ask<proto::PeerList>(proto::ListPeers{}));
  proto::LinkList links;
  if (client->broker().minor >= proto::kProtocolMinorOfProbes) {
    WEFT_TRY(links, client->ask<proto::LinkList>(proto::ListLinks{}));
  }
  return cluster_of_peers(list.peers, "the broker", additions, links);
}

std::vector<std::vector<uint32_t>> by_region(const plan::ClusterView& cluster) {
  std::vector<std::vector<uint32_t>> regions;
  std::map<std::string, size_t> region_of;
  for (uint32_t i = 0; i < cluster.devices().size(); ++i) {
    const auto [at, fresh] = region_of.emplace(cluster.devices()[i].region, regions.size());
    if (fresh) regions.emplace_back();
    regions[at->second].push_back(i);
  }
  return regions;
}

}  // namespace weft::cli
