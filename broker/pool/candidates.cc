#include "broker/pool/candidates.h"

#include <algorithm>
#include <map>
#include <set>

namespace weft::broker {

std::vector<dag::BackendTraits> classes_of(const std::vector<Candidate>& candidates) {
  std::set<dag::BackendTraits> classes;
  for (const Candidate& candidate : candidates) classes.insert(candidate.device.traits);
  return {classes.begin(), classes.end()};
}

void slow_down(plan::Rates& rates, double times) {
  rates.matmul_flops_per_second /= times;
  rates.convolution_flops_per_second /= times;
  rates.memory_bytes_per_second /= times;
  rates.kernel_seconds *= times;
  for (plan::UnitRates& unit : rates.units)
    for (double* rate : {&unit.small_flops_per_second, &unit.flops_per_second, &unit.small_bytes_per_second,
                         &unit.bytes_per_second})
      *rate /= times;
}

std::string owner_of(const Candidate& candidate) {
  return candidate.device.owner.empty() ? to_hex(candidate.peer.digest) : candidate.device.owner;
}

std::vector<plan::DeviceView> device_views(const std::vector<Candidate>& candidates) {
  const auto classes = classes_of(candidates);
  std::vector<plan::DeviceView> devices;
  std::map<std::string, uint32_t> sites;
  for (const Candidate& candidate : candidates) {
    const auto is = std::lower_bound(classes.begin(), classes.end(), candidate.device.traits);
    const auto site = sites.try_emplace(candidate.device.region, static_cast<uint32_t>(sites.size())).first;
    devices.push_back({.name = candidate.name,
                       .region = candidate.device.region,
                       .owner = owner_of(candidate),
                       .rates = candidate.device.rates,
                       .memory = candidate.device.memory,
                       .host_memory = candidate.device.host_memory,
                       .fingerprint = candidate.device.fingerprint,
                       .device_class = static_cast<uint32_t>(is - classes.begin()),
                       .threads = candidate.device.threads,
                       .site = site->second});
  }
  return devices;
}

namespace {
plan::LinkView assumed_link(const std::string& from_region, const std::string& to_region) {
  if (!from_region.empty() && from_region == to_region)
    return {.bytes_per_second = 1.25e9, .latency = std::chrono::microseconds(500), .is_assumed = true};
  return {.bytes_per_second = 12.5e6, .latency = std::chrono::milliseconds(20), .is_assumed = true};
}
}  // namespace

plan::ClusterView assumed_cluster(const std::vector<Candidate>& candidates) {
  std::vector<plan::DeviceView> devices = device_views(candidates);
  std::map<uint32_t, std::string> regions;
  for (const plan::DeviceView& device : devices) regions[device.site] = device.region;
  plan::ClusterView cluster(std::move(devices));
  for (const auto& [a, from] : regions)
    for (const auto& [b, to] : regions) cluster.set_between(a, b, assumed_link(from, to));
  return cluster;
}

void keep_only(StartPlanning& request, std::span<const uint32_t> left) {
  std::vector<Candidate> candidates;
  candidates.reserve(left.size());
  for (const uint32_t i : left) candidates.push_back(request.candidates[i]);
  request.candidates = std::move(candidates);
  const plan::ClusterView old = request.cluster.only(left);
  std::vector<plan::DeviceView> devices = old.devices();
  const std::vector<plan::DeviceView> numbered = device_views(request.candidates);
  for (size_t i = 0; i < devices.size(); ++i) devices[i].device_class = numbered[i].device_class;
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < old.site_count(); ++from)
    for (uint32_t to = 0; to < old.site_count(); ++to) cluster.set_between(from, to, old.between(from, to));
  old.each_pair(
      [&](uint32_t from, uint32_t to, const plan::LinkView& link) { cluster.set_link(from, to, link); });
  request.cluster = std::move(cluster);
}

}  // namespace weft::broker
