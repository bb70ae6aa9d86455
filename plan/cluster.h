// What is known of the devices and of the links between them.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/units.h"
#include "plan/device.h"

namespace weft::plan {

struct DeviceView {
  std::string name{};  // for the explanation
  std::string region{};
  Rates rates{};
  Bytes memory{};             // what may be used
  Bytes host_memory{};        // beside it; 0: the device's memory is the host's
  std::string fingerprint{};  // equal ones give equal bits
  uint32_t device_class = 0;  // which of the request's graphs it runs
};
// A directed pair of devices.
struct LinkView {
  double bytes_per_second = 125e6;
  Duration latency{};  // one way
};
// Devices and the links between every two of them.
class ClusterView {
 public:
  ClusterView() = default;
  explicit ClusterView(std::vector<DeviceView> devices)  // links as LinkView{} until set
      : devices_(std::move(devices)), links_(devices_.size() * devices_.size()) {}

  const std::vector<DeviceView>& devices() const { return devices_; }
  const LinkView& link(size_t from, size_t to) const { return links_[from * devices_.size() + to]; }
  void set_link(size_t from, size_t to, LinkView link) { links_[from * devices_.size() + to] = link; }

 private:
  std::vector<DeviceView> devices_{};
  std::vector<LinkView> links_;
};

}  // namespace weft::plan
