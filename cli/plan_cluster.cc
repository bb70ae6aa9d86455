#include "cli/plan_cluster.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/client.h"
#include "configs/catalogue.h"
#include "configs/cluster.h"

namespace weft::cli {
namespace {

constexpr double kFreeBytesPerSecond = 1e18;

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

// What a broker assumes of a link that nobody has measured.
plan::LinkView assumed_link(const std::string& from_region, const std::string& to_region) {
  if (!from_region.empty() && from_region == to_region)
    return {.bytes_per_second = 1.25e9, .latency = std::chrono::microseconds(500), .is_assumed = true};
  return {.bytes_per_second = 12.5e6, .latency = std::chrono::milliseconds(20), .is_assumed = true};
}

plan::DeviceView device_of(const proto::PeerStatus& peer) {
  return {.name = peer.name,
          .region = peer.region,
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
  return PlanCluster{path.string(), configs::view(cluster), {}};
}

Result<PlanCluster> cluster_of_peers(std::span<const proto::PeerStatus> peers, const std::string& source,
                                     std::span<const std::string> additions) {
  WEFT_TRY(const auto added, parse_additions(additions));
  std::vector<plan::DeviceView> devices;
  std::set<std::string> names;
  for (const proto::PeerStatus& peer : peers) {
    if (peer.state != "pool" && peer.state != "active") continue;
    devices.push_back(device_of(peer));
    names.insert(peer.name);
  }
  for (const Addition& addition : added) {
    devices.push_back(device_of(addition, free_name(names, addition.device.name)));
    names.insert(devices.back().name);
  }
  if (devices.empty())
    return fail(no_devices(source, "no peer is there; let some join, or --add TYPE@REGION"));
  std::map<std::string, uint32_t> sites;
  for (plan::DeviceView& device : devices)
    device.site = sites.try_emplace(device.region, static_cast<uint32_t>(sites.size())).first->second;
  plan::ClusterView view(std::move(devices));
  for (const auto& [from, a] : sites)
    for (const auto& [to, b] : sites) view.set_between(a, b, assumed_link(from, to));
  std::vector<std::string> notes;
  if (view.devices().size() > 1)
    notes.push_back("links are assumed, not measured: 10 Gbit/s within a region, 100 Mbit/s between others");
  return PlanCluster{source, std::move(view), std::move(notes)};
}

Result<PlanCluster> cluster_of_broker(const BrokerOptions& broker, std::span<const std::string> additions) {
  WEFT_TRY(auto access, BrokerAccess::open(broker));
  WEFT_TRY(const auto client, access->connect());
  WEFT_TRY(const auto list, client->ask<proto::PeerList>(proto::ListPeers{}));
  return cluster_of_peers(list.peers, "the broker", additions);
}

plan::ClusterView with_free_links(const plan::ClusterView& cluster) {
  std::vector<plan::DeviceView> devices = cluster.devices();
  for (plan::DeviceView& device : devices) {
    device.uplink = device.downlink = plan::kUnlimited;
    device.site = 0;
  }
  plan::ClusterView view(std::move(devices));
  if (view.site_count() > 0) view.set_between(0, 0, {.bytes_per_second = kFreeBytesPerSecond, .latency = {}});
  return view;
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
