// What is known of the devices and of the links between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/units.h"
#include "plan/device.h"

namespace weft::plan {

inline constexpr double kUnlimited = std::numeric_limits<double>::infinity();  // bytes a second

struct DeviceView {
  std::string name{};  // for the explanation
  std::string region{};
  std::string owner{};  // whose it is; empty: nobody's who has another
  Rates rates{};
  Bytes memory{};             // what may be used
  Bytes host_memory{};        // beside it; 0: the device's memory is the host's
  std::string fingerprint{};  // equal ones give equal bits
  uint32_t device_class = 0;  // which of the request's graphs it runs
  // Bytes a second that all its links together carry, each way.
  double uplink = kUnlimited, downlink = kUnlimited;
  uint32_t threads = 0;  // that compute and serve its links in turns; 0: others serve the links
  uint32_t site = 0;     // devices of one site have the same links to others, their own lines aside
};
// One direction.
struct LinkView {
  double bytes_per_second = 125e6;
  Duration latency{};       // one way
  bool is_assumed = false;  // nobody has measured it
  bool operator==(const LinkView&) const = default;
};

// Devices, the lines that connect each, what lies between the sites they stand at, and pairs that differ from
// their sites. Takes memory by devices and by pairs of sites, not by pairs of devices.
class ClusterView {
 public:
  ClusterView() = default;
  explicit ClusterView(std::vector<DeviceView> devices);  // links as LinkView{} until set

  const std::vector<DeviceView>& devices() const { return devices_; }
  uint32_t site_count() const { return sites_; }

  // What one flow gets that has both ends' lines for itself: the least of the sender's uplink, what lies
  // between, and the receiver's downlink.
  LinkView link(size_t from, size_t to) const;
  // Without the ends' lines.
  const LinkView& path(size_t from, size_t to) const;
  const LinkView& between(uint32_t from_site, uint32_t to_site) const {
    return between_[size_t{from_site} * sites_ + to_site];
  }
  // The same site twice: between two of its devices. REQUIRES: sites of this cluster.
  void set_between(uint32_t from_site, uint32_t to_site, LinkView link) {
    between_[size_t{from_site} * sites_ + to_site] = link;
  }
  void set_lines(size_t device, double uplink, double downlink) {
    devices_[device].uplink = uplink;
    devices_[device].downlink = downlink;
  }
  // Of this pair alone.
  void set_link(size_t from, size_t to, LinkView link) { pairs_[key(from, to)] = link; }
  bool all_links(const std::function<bool(const LinkView&)>& are) const;  // each that was set
  bool has_pairs() const { return !pairs_.empty(); }
  // Those that differ from their sites, ascending.
  void each_pair(const std::function<void(uint32_t from, uint32_t to, const LinkView&)>& visit) const;

  // For each device the first one that it can stand for as far as links go: of the same site, with the same
  // lines, and neither has a pair of its own.
  std::vector<uint32_t> equal_in_links() const;

  // Some of the devices, in that order, and what lies between them.
  ClusterView only(std::span<const uint32_t> devices) const;

 private:
  static uint64_t key(size_t from, size_t to) { return (uint64_t{from} << 32) | to; }

  std::vector<DeviceView> devices_{};
  uint32_t sites_ = 0;
  std::vector<LinkView> between_{};
  std::unordered_map<uint64_t, LinkView> pairs_{};
};

}  // namespace weft::plan
