#include "cli/plan_cluster.h"

#include <algorithm>
#include <map>
#include <set>

#include "cli/client.h"
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
plan::LinkView assumed_link(const plan::DeviceView& from, const plan::DeviceView& to) {
  if (!from.region.empty() && from.region == to.region)
    return {.bytes_per_second = 1.25e9, .latency = std::chrono::microseconds(500)};
  return {.bytes_per_second = 12.5e6, .latency = std::chrono::milliseconds(20)};
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
          .fingerprint = std::string(addition.device.name)};
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
    const std::string type(addition.device.name);
    cluster.devices.push_back({.name = free_name(names, type),
                               .type = type,
                               .region = addition.region,
                               .peak_fp32_flops = addition.device.peak_fp32_flops,
                               .peak_bf16_flops = {},
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
  plan::ClusterView view(devices);
  for (size_t from = 0; from < devices.size(); ++from)
    for (size_t to = 0; to < devices.size(); ++to)
      if (from != to) view.set_link(from, to, assumed_link(devices[from], devices[to]));
  std::vector<std::string> notes;
  if (devices.size() > 1)
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
  plan::ClusterView view(cluster.devices());
  for (size_t from = 0; from < cluster.devices().size(); ++from)
    for (size_t to = 0; to < cluster.devices().size(); ++to)
      if (from != to) view.set_link(from, to, {.bytes_per_second = kFreeBytesPerSecond, .latency = {}});
  return view;
}

plan::ClusterView only(const plan::ClusterView& cluster, std::span<const size_t> devices) {
  std::vector<plan::DeviceView> chosen;
  for (const size_t device : devices) chosen.push_back(cluster.devices()[device]);
  plan::ClusterView view(std::move(chosen));
  for (size_t from = 0; from < devices.size(); ++from)
    for (size_t to = 0; to < devices.size(); ++to)
      if (from != to) view.set_link(from, to, cluster.link(devices[from], devices[to]));
  return view;
}

std::vector<std::vector<size_t>> by_region(const plan::ClusterView& cluster) {
  std::vector<std::vector<size_t>> regions;
  std::map<std::string, size_t> region_of;
  for (size_t i = 0; i < cluster.devices().size(); ++i) {
    const auto [at, fresh] = region_of.emplace(cluster.devices()[i].region, regions.size());
    if (fresh) regions.emplace_back();
    regions[at->second].push_back(i);
  }
  return regions;
}

}  // namespace weft::cli
