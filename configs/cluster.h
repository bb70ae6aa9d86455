// The cluster file: which devices there are and what lies between them, for the planner, the link emulator
// and the benches. Devices may be named by their type in the catalogue (configs/catalogue.h).
//
//   devices:
//     - {type: rtx3080, count: 8, region: oregon}
//     - {name: lab, peak_flops: {fp32: 2.0e13}, memory: 24GiB, memory_bandwidth: 9.0e11, region: tokyo,
//     uplink: 20Mbit, owner: anna}
//   regions:
//     within:  {round_trip_ms: 1, bandwidth: 10Gbit}
//     between: [{from: oregon, to: tokyo, round_trip_ms: 92, bandwidth: 262Mbit, jitter_ms: 3, loss: 0.001}]
//   broker: oregon        # the region where the broker is; else it is everywhere at once
//
// An entry of `between` holds both ways unless it says `one_way: true`. Instead of `regions`, `links` may
// list one entry for each directed pair of devices: {from: lab, to: rtx3080-1, round_trip_ms: 92, bandwidth:
// 262Mbit}.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "plan/cluster.h"

namespace weft::configs {

struct ClusterDevice {
  std::string name;  // unique
  std::string type;  // of the catalogue; empty when figures were given
  std::string region;
  std::string owner;  // whose it is; empty: nobody's who has another
  double peak_fp32_flops = 0;
  std::optional<double> peak_tf32_flops, peak_bf16_flops;
  Bytes memory;
  double memory_bandwidth = 0;             // bytes a second
  std::optional<double> uplink, downlink;  // bytes a second, over whatever the links allow
};

// One direction.
struct LinkProfile {
  double bytes_per_second = 0;
  Duration latency{}, jitter{};  // one way; jitter is the most that is added
  double loss = 0;               // of a segment, 0 to below 1
  bool operator==(const LinkProfile&) const = default;
};

struct Cluster {
  std::string source;                  // the file's name, for messages
  std::vector<ClusterDevice> devices;  // may be empty: an emulator needs regions alone
  std::vector<std::string> regions;    // in the order named
  std::string broker;                  // a region; empty: as near to all as they are to themselves
  // By region (from, to), the same one twice for within. Empty when links were listed.
  std::map<std::pair<std::string, std::string>, LinkProfile> between;
  std::map<std::pair<size_t, size_t>, LinkProfile> links;  // by device; empty unless listed
};

// Errors tell every problem, "<file>:<line>:<column>: what, and what to try": InvalidArgument, NotFound for
// an unknown type first; NotFound, PermissionDenied and so on for the file itself.
Result<Cluster> load_cluster(const std::filesystem::path& path);
Result<Cluster> parse_cluster(std::string_view text, const std::string& source = "cluster.yaml");

// NotFound, with the regions there are.
Result<LinkProfile> link_between(const Cluster& cluster, std::string_view from_region,
                                 std::string_view to_region);

// The device of this name in this region. NotFound, InvalidArgument (it is in another), with those there are.
Result<ClusterDevice> device_in(const Cluster& cluster, std::string_view name, std::string_view region);

plan::ClusterView view(const Cluster& cluster);

// "100Mbit" and "10Gbit" to bytes a second; "24GiB" to bytes. Nothing: not such a text, or not positive.
std::optional<double> parse_bandwidth(std::string_view text);
std::optional<Bytes> parse_memory(std::string_view text);

}  // namespace weft::configs
