// The networks of the wide-area bench: cluster files, a table of links between regions, six sites of one
// bandwidth, and homes behind lines of one bandwidth.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "plan/cluster.h"

namespace weft::bench {

struct Topology {
  std::string name;
  plan::ClusterView cluster;
};

// A file of regions with "round_trip_ms" and "bandwidth_gbit_per_s" between them, row to column, the diagonal
// within a region; eight devices of `type` in each. Errors: what of it is wrong, and where.
Result<Topology> topology_of_links(const std::filesystem::path& path, const std::string& type);
// A cluster file (configs/cluster.h).
Result<Topology> topology_of_cluster(const std::filesystem::path& path);
// Six sites of eight: one of RTX 4090, three of RTX 3080, two of RTX 2080 Ti, as in sites-48.yaml; 10 Gbit/s
// and 0.5 ms within a site, `bits_per_second` and a round trip of 40 ms between any two devices of different
// ones. Errors: of the catalogue.
Result<Topology> six_sites(const std::string& bandwidth, double bits_per_second);
// Twenty-four homes of one device each, of the kinds of scattered-48.yaml: four of RTX 4090, twelve of RTX
// 3080, eight of RTX 2080 Ti. Behind a line of `bits_per_second` each way, which all that a home sends, or
// takes in, shares; 10 Gbit/s and a round trip of 40 ms between any two. Errors: of the catalogue.
Result<Topology> homes(const std::string& bandwidth, double bits_per_second);

// Devices by site, in ascending order.
std::vector<std::vector<uint32_t>> by_site(const plan::ClusterView& cluster);
plan::ClusterView with_memory_scaled(const plan::ClusterView& cluster, double factor);
// Each device has so much beside its own memory.
plan::ClusterView with_host_memory(const plan::ClusterView& cluster, Bytes host_memory);

}  // namespace weft::bench
