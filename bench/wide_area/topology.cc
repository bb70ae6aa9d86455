#include "bench/wide_area/topology.h"

#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <nlohmann/json.hpp>

#include "configs/catalogue.h"
#include "configs/cluster.h"

namespace weft::bench {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kDevicesEach = 8;
constexpr size_t kRegionsMax = 256;
constexpr double kBetweenMs = 40;  // round trip, where one bandwidth is all that is said of a network

Status add_devices(const std::string& type, const std::string& region, uint32_t site,
                   std::vector<plan::DeviceView>& devices, uint32_t count = kDevicesEach) {
  WEFT_TRY(const configs::CatalogueDevice device, configs::find_device(type));
  for (uint32_t i = 0; i < count; ++i)
    devices.push_back({.name = region + "-" + std::to_string(i + 1),
                       .region = region,
                       .rates = configs::rates_of(device.peak_fp32_flops, device.memory_bandwidth),
                       .memory = device.memory,
                       .fingerprint = device.name,
                       .site = site});
  return {};
}

Duration one_way(double round_trip_ms) {
  return Duration(static_cast<int64_t>(std::llround(round_trip_ms / 2 * 1e6)));
}

// A square table of finite numbers, all above zero or, where `zero` is set, not below it.
Result<std::vector<std::vector<double>>> read_table(const Json& file, const char* key, size_t size, bool zero,
                                                    const std::string& source) {
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, source + ": \"" + key + "\" " + what);
  };
  const std::string square = "must be " + std::to_string(size) + " rows of " + std::to_string(size) +
                             " numbers, one for each region";
  const auto at = file.find(key);
  if (at == file.end() || !at->is_array() || at->size() != size) return wrong(square);
  std::vector<std::vector<double>> table;
  for (const Json& row : *at) {
    if (!row.is_array() || row.size() != size) return wrong(square);
    auto& numbers = table.emplace_back();
    for (const Json& cell : row) {
      const std::string place =
          "row " + std::to_string(table.size()) + ", column " + std::to_string(numbers.size() + 1);
      if (!cell.is_number()) return wrong(place + " is no number");
      const double number = cell.get<double>();
      if (!std::isfinite(number) || number < 0 || number > 1e6 || (number == 0 && !zero))
        return wrong(place + " is " + cell.dump() + ", want " + (zero ? "0" : "above 0") + " to 1e6");
      numbers.push_back(number);
    }
  }
  return table;
}

Result<std::vector<std::string>> read_regions(const Json& file, const std::string& source) {
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, source + ": \"regions\" " + what);
  };
  const auto at = file.find("regions");
  if (at == file.end() || !at->is_array() || at->empty() || at->size() > kRegionsMax)
    return wrong("must be a list of 1 to " + std::to_string(kRegionsMax) + " names");
  std::vector<std::string> names;
  std::set<std::string> known;
  for (const Json& name : *at) {
    if (!name.is_string() || name.get_ref<const std::string&>().empty())
      return wrong("has an entry that is no name");
    names.push_back(name.get<std::string>());
    if (!known.insert(names.back()).second) return wrong("names '" + names.back().substr(0, 80) + "' twice");
  }
  return names;
}

}  // namespace

Result<Topology> topology_of_links(const std::filesystem::path& path, const std::string& type) {
  const std::string source = path.string();
  std::ifstream in(path, std::ios::binary);
  if (!in) return fail(ErrorCode::NotFound, source + ": cannot be read");
  std::ostringstream text;
  text << in.rdbuf();
  const Json file = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (!file.is_object())
    return fail(
        ErrorCode::InvalidArgument,
        source + ": is no JSON object of \"regions\", \"round_trip_ms\" and \"bandwidth_gbit_per_s\"");
  WEFT_TRY(const auto regions, read_regions(file, source));
  WEFT_TRY(const auto round_trips, read_table(file, "round_trip_ms", regions.size(), true, source));
  WEFT_TRY(const auto bandwidths, read_table(file, "bandwidth_gbit_per_s", regions.size(), false, source));
  std::vector<plan::DeviceView> devices;
  for (uint32_t site = 0; site < regions.size(); ++site)
    WEFT_TRY_STATUS(add_devices(type, regions[site], site, devices));
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < regions.size(); ++from)
    for (uint32_t to = 0; to < regions.size(); ++to)
      cluster.set_between(from, to, {bandwidths[from][to] * 1e9 / 8, one_way(round_trips[from][to])});
  return Topology{path.stem().string(), std::move(cluster)};
}

Result<Topology> topology_of_cluster(const std::filesystem::path& path) {
  WEFT_TRY(const configs::Cluster cluster, configs::load_cluster(path));
  if (cluster.devices.empty()) return fail(ErrorCode::InvalidArgument, path.string() + ": lists no devices");
  return Topology{path.stem().string(), configs::view(cluster)};
}

Result<Topology> six_sites(const std::string& bandwidth, double bits_per_second) {
  constexpr std::pair<const char*, const char*> kSites[] = {{"north", "rtx4090"},  {"south", "rtx3080"},
                                                            {"east", "rtx3080"},   {"west", "rtx3080"},
                                                            {"lake", "rtx2080ti"}, {"coast", "rtx2080ti"}};
  std::vector<plan::DeviceView> devices;
  for (uint32_t site = 0; site < std::size(kSites); ++site)
    WEFT_TRY_STATUS(add_devices(kSites[site].second, kSites[site].first, site, devices));
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < std::size(kSites); ++from)
    for (uint32_t to = 0; to < std::size(kSites); ++to)
      cluster.set_between(from, to,
                          from == to ? plan::LinkView{1.25e9, one_way(0.5)}
                                     : plan::LinkView{bits_per_second / 8, one_way(kBetweenMs)});
  return Topology{"six-sites-" + bandwidth, std::move(cluster)};
}

Result<Topology> homes(const std::string& bandwidth, double bits_per_second) {
  constexpr uint32_t kHomes = 24;
  constexpr const char* kTypes[] = {"rtx4090", "rtx3080", "rtx2080ti", "rtx3080", "rtx3080", "rtx2080ti"};
  std::vector<plan::DeviceView> devices;
  for (uint32_t home = 0; home < kHomes; ++home)
    WEFT_TRY_STATUS(add_devices(kTypes[home % std::size(kTypes)], "home" + std::to_string(home + 1), home,
                                devices, /*count=*/1));
  for (plan::DeviceView& device : devices) device.uplink = device.downlink = bits_per_second / 8;
  plan::ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < kHomes; ++from)
    for (uint32_t to = 0; to < kHomes; ++to) cluster.set_between(from, to, {1.25e9, one_way(kBetweenMs)});
  return Topology{"homes-" + bandwidth, std::move(cluster)};
}

std::vector<std::vector<uint32_t>> by_site(const plan::ClusterView& cluster) {
  std::map<uint32_t, std::vector<uint32_t>> sites;
  for (uint32_t i = 0; i < cluster.devices().size(); ++i) sites[cluster.devices()[i].site].push_back(i);
  std::vector<std::vector<uint32_t>> all;
  all.reserve(sites.size());
  for (auto& [site, devices] : sites) all.push_back(std::move(devices));
  return all;
}

namespace {
// The same links between other devices.
plan::ClusterView with_devices(const plan::ClusterView& cluster, std::vector<plan::DeviceView> devices) {
  const size_t count = devices.size();
  plan::ClusterView view(std::move(devices));
  for (uint32_t from = 0; from < view.site_count(); ++from)
    for (uint32_t to = 0; to < view.site_count(); ++to) view.set_between(from, to, cluster.between(from, to));
  if (cluster.has_pairs())
    for (size_t from = 0; from < count; ++from)
      for (size_t to = 0; to < count; ++to)
        if (from != to) view.set_link(from, to, cluster.path(from, to));
  return view;
}
}  // namespace

plan::ClusterView with_memory_scaled(const plan::ClusterView& cluster, double factor) {
  std::vector<plan::DeviceView> devices = cluster.devices();
  for (plan::DeviceView& device : devices) {
    device.memory.value = static_cast<int64_t>(static_cast<double>(device.memory.value) * factor);
    device.host_memory.value = static_cast<int64_t>(static_cast<double>(device.host_memory.value) * factor);
  }
  return with_devices(cluster, std::move(devices));
}

plan::ClusterView with_host_memory(const plan::ClusterView& cluster, Bytes host_memory) {
  std::vector<plan::DeviceView> devices = cluster.devices();
  for (plan::DeviceView& device : devices) device.host_memory = host_memory;
  return with_devices(cluster, std::move(devices));
}

}  // namespace weft::bench
