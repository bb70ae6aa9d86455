#include "configs/cluster.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

#include "configs/catalogue.h"
#include "configs/device_figures.h"
#include "configs/reader.h"
#include "data/file.h"

namespace weft::configs {
namespace {

constexpr size_t kDevicesMax = 4096;
constexpr size_t kRegionsMax = 256;
constexpr double kBytesPerSecondMax = 1e15;
constexpr double kRoundTripMsMax = 60'000;
constexpr size_t kNamesShown = 20;

// "12.5Mbit": the number in front of a unit of the table, times the unit.
template <size_t N>
std::optional<double> with_unit(std::string_view text,
                                const std::array<std::pair<std::string_view, double>, N>& units) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc() || !std::isfinite(number) || number <= 0) return std::nullopt;
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : units)
    if (unit == name) return number * factor;
  return std::nullopt;
}

class ClusterReader {
 public:
  ClusterReader(const Node& tree, const std::string& source) : root_(tree, "", problems_) {
    cluster_.source = source;
  }

  Result<Cluster> read() {
    root_.check_format();
    read_devices();
    const Node* regions = root_.take("regions");
    const Node* links = root_.take("links");
    if (regions && links)
      root_.problem(links->where, "`regions` and `links` both say what lies between devices; keep one");
    else if (links)
      read_links(*links);
    else if (regions)
      read_regions(*regions);
    else if (cluster_.devices.size() > 1 || cluster_.devices.empty())
      root_.problem(root_.where(), "the file needs `regions`, with `within` and `between`, or `links`");
    read_broker();
    root_.finish();
    if (!problems_.empty()) return fail(problems_.error());
    return std::move(cluster_);
  }

 private:
  // ---- devices ----

  void read_devices() {
    const Node* node = root_.take("devices");
    if (!node) return;
    if (node->kind != Node::Kind::Sequence) {
      root_.problem(node->where, "`devices` must be a list, as [{type: rtx3080, count: 8, region: oregon}]");
      return;
    }
    for (size_t i = 0; i < node->items.size(); ++i)
      read_device(node->items[i], "devices[" + std::to_string(i) + "]");
  }

  void read_device(const Node& node, const std::string& path) {
    MapReader reader(node, path, problems_);
    if (!reader.is_map()) return;
    ClusterDevice device;
    std::optional<DeviceFigures> known;
    if (const Node* type = reader.take("type")) {
      device.type = reader.parse_text(*type, "type").value_or("");
      const auto found = find_device(device.type);
      if (!found && !device.type.empty())
        reader.problem(type->where,
                       found.error().message +
                           "; or leave `type` out and give peak_flops, memory and "
                           "memory_bandwidth",
                       ErrorCode::NotFound);
      if (found)
        known = {found->peak_fp32_flops, found->peak_tf32_flops, found->peak_bf16_flops, found->memory,
                 found->memory_bandwidth};
      else
        known.emplace();
    }
    // What is given goes over what the catalogue says.
    const DeviceFigures figures = read_figures(reader, path, problems_, known);
    device.peak_fp32_flops = figures.peak_fp32_flops;
    device.peak_tf32_flops = figures.peak_tf32_flops;
    device.peak_bf16_flops = figures.peak_bf16_flops;
    device.memory = figures.memory;
    device.memory_bandwidth = figures.memory_bandwidth;
    device.region = reader.text("region", "");
    if (!device.region.empty()) note_region(device.region, node.where);
    device.owner = reader.text("owner", "");
    device.uplink = bandwidth(reader, "uplink");
    device.downlink = bandwidth(reader, "downlink");
    const uint64_t count = reader.count("count", 1, 1, kDevicesMax);
    const std::string base = reader.text("name", device.type.empty() ? "device" : device.type);
    const bool numbered = count > 1 || !node.find("name");
    reader.finish();
    if (cluster_.devices.size() + count > kDevicesMax) {
      reader.problem(node.where, "more than " + std::to_string(kDevicesMax) + " devices",
                     ErrorCode::ResourceExhausted);
      return;
    }
    for (uint64_t i = 0; i < count; ++i) {
      device.name = numbered ? base + "-" + std::to_string(++numbers_[base]) : base;
      if (!device_of_name_.emplace(device.name, cluster_.devices.size()).second)
        reader.problem(node.where, "there are two devices '" + device.name + "'; give one another name");
      cluster_.devices.push_back(device);
    }
  }

  // ---- links ----

  std::optional<double> bandwidth(MapReader& reader, std::string_view key) {
    const Node* node = reader.take(key);
    return node ? bandwidth_of(reader, *node, key) : std::nullopt;
  }
  std::optional<double> bandwidth_of(MapReader& reader, const Node& node, std::string_view key) {
    const auto rate = node.kind == Node::Kind::Scalar ? parse_bandwidth(node.text) : std::nullopt;
    if (!rate)
      reader.problem(node.where, "`" + reader.path_of(key) + "` must be a bandwidth, as 100Mbit or 10Gbit");
    return rate;
  }

  LinkProfile read_profile(MapReader& reader) {
    LinkProfile profile;
    const auto ms = [](double milliseconds) {
      return Duration(static_cast<int64_t>(std::llround(milliseconds * 1e6)));
    };
    if (const Node* node = reader.require("bandwidth", "as 100Mbit"))
      profile.bytes_per_second = bandwidth_of(reader, *node, "bandwidth").value_or(1);
    if (const Node* node = reader.require("round_trip_ms", "as 40; half of it is each way"))
      profile.latency = ms(reader.parse_number(*node, "round_trip_ms", {0, kRoundTripMsMax}).value_or(0) / 2);
    profile.jitter = ms(reader.number("jitter_ms", 0, {0, kRoundTripMsMax}));
    profile.loss = reader.number("loss", 0, {0, 0.5});
    return profile;
  }

  void note_region(const std::string& region, const Location& where) {
    if (std::find(cluster_.regions.begin(), cluster_.regions.end(), region) != cluster_.regions.end()) return;
    if (cluster_.regions.size() == kRegionsMax)
      root_.problem(where, "more than " + std::to_string(kRegionsMax) + " regions",
                    ErrorCode::ResourceExhausted);
    else
      cluster_.regions.push_back(region);
  }

  void read_regions(const Node& node) {
    MapReader reader(node, "regions", problems_);
    if (!reader.is_map()) return;
    for (const ClusterDevice& device : cluster_.devices)
      if (device.region.empty())
        root_.problem(node.where, "device '" + device.name + "' has no `region`, which `regions` needs");
    const Node* within = reader.require("within", "as {round_trip_ms: 1, bandwidth: 10Gbit}");
    LinkProfile inside;
    if (within) {
      MapReader profile(*within, "regions.within", problems_);
      inside = read_profile(profile);
      profile.finish();
    }
    const Node* between = reader.take("between");
    if (between && between->kind != Node::Kind::Sequence)
      reader.problem(
          between->where,
          "`regions.between` must be a list, as [{from: a, to: b, round_trip_ms: 92, bandwidth: 262Mbit}]");
    else if (between)
      for (size_t i = 0; i < between->items.size(); ++i)
        read_between(between->items[i], "regions.between[" + std::to_string(i) + "]");
    reader.finish();
    for (const std::string& region : cluster_.regions) cluster_.between.insert({{region, region}, inside});
    for (const std::string& from : cluster_.regions)
      for (const std::string& to : cluster_.regions)
        if (!cluster_.between.contains({from, to}))
          reader.problem(
              between ? between->where : node.where,
              "nothing is said of the way from '" + from + "' to '" + to + "'; add it to `regions.between`");
  }

  void read_between(const Node& node, const std::string& path) {
    MapReader reader(node, path, problems_);
    if (!reader.is_map()) return;
    const std::string from = reader.required_text("from", "name a region"),
                      to = reader.required_text("to", "name a region");
    const bool one_way = reader.flag("one_way", false);
    const LinkProfile profile = read_profile(reader);
    reader.finish();
    if (from.empty() || to.empty()) return;
    if (from == to) {
      reader.problem(node.where,
                     "`" + path + "` goes from '" + from + "' to itself; that is `regions.within`");
      return;
    }
    note_region(from, node.where);
    note_region(to, node.where);
    const bool fresh = cluster_.between.insert({{from, to}, profile}).second;
    const bool fresh_back = one_way || cluster_.between.insert({{to, from}, profile}).second;
    if (!fresh || !fresh_back)
      reader.problem(node.where,
                     "the way from '" + (fresh ? to : from) + "' to '" + (fresh ? from : to) +
                         "' was given before; an entry holds both ways unless it says `one_way: true`");
  }

  void read_links(const Node& node) {
    if (node.kind != Node::Kind::Sequence) {
      root_.problem(node.where,
                    "`links` must be a list, as [{from: lab, to: rtx3080-1, round_trip_ms: 92, bandwidth: "
                    "262Mbit}]");
      return;
    }
    for (size_t i = 0; i < node.items.size(); ++i) {
      MapReader reader(node.items[i], "links[" + std::to_string(i) + "]", problems_);
      if (!reader.is_map()) continue;
      const auto from = device_named(reader, "from"), to = device_named(reader, "to");
      const LinkProfile profile = read_profile(reader);
      reader.finish();
      if (!from || !to) continue;
      if (*from == *to)
        reader.problem(node.items[i].where, "a link goes between two devices, not from one to itself");
      else if (!cluster_.links.insert({{*from, *to}, profile}).second)
        reader.problem(node.items[i].where, "this link was given before");
    }
    size_t missing = 0;
    for (size_t from = 0; from < cluster_.devices.size(); ++from)
      for (size_t to = 0; to < cluster_.devices.size(); ++to)
        if (from != to && !cluster_.links.contains({from, to}) && ++missing <= 3)
          root_.problem(node.where, "no link from '" + cluster_.devices[from].name + "' to '" +
                                        cluster_.devices[to].name +
                                        "'; `links` needs one for each directed pair");
  }

  std::optional<size_t> device_named(MapReader& reader, std::string_view key) {
    const Node* node = reader.require(key, "name a device");
    if (!node) return std::nullopt;
    const auto name = reader.parse_text(*node, key);
    if (!name) return std::nullopt;
    const auto at = device_of_name_.find(*name);
    if (at != device_of_name_.end()) return at->second;
    std::vector<std::string> names;
    names.reserve(device_of_name_.size());
    for (const auto& [other, index] : device_of_name_) names.push_back(other);
    reader.problem(node->where, "there is no device '" + *name + "'" + suggestion(*name, names),
                   ErrorCode::NotFound);
    return std::nullopt;
  }

  void read_broker() {
    const Node* node = root_.take("broker");
    if (!node) return;
    cluster_.broker = root_.parse_text(*node, "broker").value_or("");
    if (!cluster_.broker.empty() && std::find(cluster_.regions.begin(), cluster_.regions.end(),
                                              cluster_.broker) == cluster_.regions.end())
      root_.problem(
          node->where,
          "there is no region '" + cluster_.broker + "'" + suggestion(cluster_.broker, cluster_.regions),
          ErrorCode::NotFound);
  }

  Problems problems_;
  MapReader root_;
  Cluster cluster_;
  std::map<std::string, size_t> device_of_name_;
  std::map<std::string, int> numbers_;
};

std::string devices_in(const Cluster& cluster, std::string_view region) {
  std::string names;
  size_t count = 0;
  for (const ClusterDevice& device : cluster.devices)
    if (device.region == region && ++count <= kNamesShown) names += (count == 1 ? "" : ", ") + device.name;
  if (count > kNamesShown) names += " and " + std::to_string(count - kNamesShown) + " more";
  return "in '" + std::string(region) + "' there " +
         (count == 0 ? "is none" : (count == 1 ? "is " : "are ") + names);
}

}  // namespace

std::optional<double> parse_bandwidth(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 5> kUnits = {
      {{"bit", 1.0 / 8}, {"kbit", 1e3 / 8}, {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"Tbit", 1e12 / 8}}};
  const auto rate = with_unit(text, kUnits);
  return rate && *rate <= kBytesPerSecondMax ? rate : std::nullopt;
}

std::optional<Bytes> parse_memory(std::string_view text) {
  static constexpr std::array<std::pair<std::string_view, double>, 9> kUnits = {{{"B", 1},
                                                                                 {"KiB", 0x1p10},
                                                                                 {"MiB", 0x1p20},
                                                                                 {"GiB", 0x1p30},
                                                                                 {"TiB", 0x1p40},
                                                                                 {"kB", 1e3},
                                                                                 {"MB", 1e6},
                                                                                 {"GB", 1e9},
                                                                                 {"TB", 1e12}}};
  const auto bytes = with_unit(text, kUnits);
  if (!bytes || *bytes < 1 || *bytes > 0x1p60) return std::nullopt;
  return Bytes{static_cast<int64_t>(*bytes)};
}

Result<Cluster> parse_cluster(std::string_view text, const std::string& source) {
  WEFT_TRY(const Node tree, parse_yaml(text, source));
  return ClusterReader(tree, source).read();
}

Result<Cluster> load_cluster(const std::filesystem::path& path) {
  WEFT_TRY(const auto file, data::File::open(path));
  if (file->size() > kYamlSizeMax)
    return file->error(ErrorCode::ResourceExhausted,
                       "larger than a cluster file may be (" + std::to_string(kYamlSizeMax) + " bytes)");
  std::string text(static_cast<size_t>(file->size()), '\0');
  WEFT_TRY_STATUS(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return parse_cluster(text, path.string());
}

Result<LinkProfile> link_between(const Cluster& cluster, std::string_view from_region,
                                 std::string_view to_region) {
  const auto at = cluster.between.find({std::string(from_region), std::string(to_region)});
  if (at != cluster.between.end()) return at->second;
  if (cluster.between.empty())
    return fail(ErrorCode::NotFound,
                cluster.source + " lists links between devices, not regions; give `regions`");
  for (const std::string_view region : {from_region, to_region})
    if (std::find(cluster.regions.begin(), cluster.regions.end(), region) == cluster.regions.end())
      return fail(ErrorCode::NotFound, cluster.source + " has no region '" + std::string(region) + "'" +
                                           suggestion(region, cluster.regions));
  return fail(ErrorCode::NotFound, cluster.source + " says nothing of the way from '" +
                                       std::string(from_region) + "' to '" + std::string(to_region) + "'");
}

Result<ClusterDevice> device_in(const Cluster& cluster, std::string_view name, std::string_view region) {
  std::vector<std::string> names;
  for (const ClusterDevice& device : cluster.devices) {
    names.push_back(device.name);
    if (device.name != name) continue;
    if (device.region == region) return device;
    return fail(ErrorCode::InvalidArgument, cluster.source + ": device '" + device.name + "' is in '" +
                                                device.region + "', not in '" + std::string(region) + "'; " +
                                                devices_in(cluster, region));
  }
  return fail(ErrorCode::NotFound, cluster.source + " has no device '" + std::string(name) + "'" +
                                       suggestion(name, names) + "; " + devices_in(cluster, region));
}

plan::ClusterView view(const Cluster& cluster) {
  const auto site_of = [&](const std::string& region) {
    const auto at = std::find(cluster.regions.begin(), cluster.regions.end(), region);
    return static_cast<uint32_t>(at - cluster.regions.begin());
  };
  const bool by_region = cluster.links.empty();
  std::vector<plan::DeviceView> devices;
  devices.reserve(cluster.devices.size());
  for (const ClusterDevice& device : cluster.devices)
    devices.push_back({.name = device.name,
                       .region = device.region,
                       .owner = device.owner,
                       .rates = rates_of(device.peak_fp32_flops, device.memory_bandwidth),
                       .memory = device.memory,
                       .fingerprint = device.type.empty() ? device.name : device.type,
                       .uplink = device.uplink.value_or(plan::kUnlimited),
                       .downlink = device.downlink.value_or(plan::kUnlimited),
                       .site = by_region ? site_of(device.region) : 0});
  plan::ClusterView view(std::move(devices));
  const auto seen = [](const LinkProfile& profile) {
    return plan::LinkView{.bytes_per_second = profile.bytes_per_second,
                          .latency = profile.latency + profile.jitter / 2};
  };
  for (const auto& [ends, profile] : cluster.between) {
    const uint32_t from = site_of(ends.first), to = site_of(ends.second);
    if (std::max(from, to) < view.site_count()) view.set_between(from, to, seen(profile));
  }
  for (const auto& [ends, profile] : cluster.links) view.set_link(ends.first, ends.second, seen(profile));
  return view;
}

}  // namespace weft::configs
