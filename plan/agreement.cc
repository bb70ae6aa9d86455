#include "plan/agreement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace weft::plan {
namespace {

// What goes one way, all at the same time.
class Exchange {
 public:
  explicit Exchange(const ClusterView& cluster) : cluster_(cluster) {}

  void send(uint32_t from, uint32_t to, Bytes bytes) {
    const auto size = static_cast<double>(bytes.value);
    up_[from] += size;
    down_[to] += size;
    between_[{from, to}] += size;
  }
  double seconds() const {
    double busiest = 0;
    Duration latency{};
    for (const auto& [device, bytes] : up_)
      busiest = std::max(busiest, bytes / cluster_.devices()[device].uplink);
    for (const auto& [device, bytes] : down_)
      busiest = std::max(busiest, bytes / cluster_.devices()[device].downlink);
    for (const auto& [ends, bytes] : between_) {
      const LinkView link = cluster_.link(ends.first, ends.second);
      busiest = std::max(busiest, bytes / link.bytes_per_second);
      latency = std::max(latency, link.latency);
    }
    return busiest + weft::seconds(latency);
  }

 private:
  const ClusterView& cluster_;
  std::map<uint32_t, double> up_, down_;
  std::map<std::pair<uint32_t, uint32_t>, double> between_;
};

// Bytes a second, both ways, at the best that one of the others lets it have.
double line_of(const ClusterView& cluster, uint32_t device, const std::vector<uint32_t>& others) {
  double best = 0;
  for (const uint32_t other : others)
    if (other != device)
      best = std::max(best, std::min(cluster.link(device, other).bytes_per_second,
                                     cluster.link(other, device).bytes_per_second));
  return best;
}

}  // namespace

double rate_to(const ClusterView& cluster, uint32_t device, const std::vector<uint32_t>& others) {
  double best = 0;
  for (const uint32_t other : others)
    if (other != device) best = std::max(best, cluster.link(other, device).bytes_per_second);
  return std::min(best, cluster.devices()[device].downlink);
}

void deal_owners(const ClusterView& cluster, std::span<AgreedLoad> tensors,
                 const std::vector<uint32_t>& followers, std::vector<int64_t> room) {
  // What lacks, and then the time that it takes: less is better.
  const auto lacks = [&](uint32_t device, const AgreedLoad& tensor) {
    return room.empty() ? 0 : std::max<int64_t>(0, tensor.kept.value - room[device]);
  };
  std::vector<uint32_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return tensors[a].bytes > tensors[b].bytes; });
  std::map<uint32_t, double> lines;                       // by device
  std::map<std::pair<uint32_t, uint32_t>, double> taken;  // by fragment and device
  for (const uint32_t t : order) {
    AgreedLoad& tensor = tensors[t];
    if (tensor.devices.size() < 2) continue;
    std::optional<std::pair<int64_t, double>> least;
    for (uint32_t replica = 0; replica < tensor.devices.size(); ++replica) {
      if (std::binary_search(followers.begin(), followers.end(), replica)) continue;
      const uint32_t device = tensor.devices[replica];
      const auto [line, fresh] = lines.try_emplace(device, 0);
      if (fresh) line->second = line_of(cluster, device, tensor.devices);
      const double seconds =
          (taken[{tensor.fragment, device}] + static_cast<double>(tensor.bytes.value)) / line->second;
      const std::pair cost(lacks(device, tensor), seconds);
      if (least && cost >= *least) continue;
      least = cost;
      tensor.owner = replica;
    }
    if (!room.empty()) room[tensor.devices[tensor.owner]] -= tensor.kept.value;
    taken[{tensor.fragment, tensor.devices[tensor.owner]}] += static_cast<double>(tensor.bytes.value);
  }
}

double agreement_seconds(const ClusterView& cluster, std::span<const AgreedLoad> tensors) {
  Exchange differences(cluster), means(cluster);
  for (const AgreedLoad& tensor : tensors)
    for (uint32_t replica = 0; replica < tensor.devices.size(); ++replica) {
      if (replica == tensor.owner) continue;
      differences.send(tensor.devices[replica], tensor.devices[tensor.owner], tensor.bytes);
      means.send(tensor.devices[tensor.owner], tensor.devices[replica], tensor.bytes);
    }
  return differences.seconds() + means.seconds();
}

std::vector<Bytes> data_bytes(const dag::Graph& graph) {
  int64_t longest = 0;
  for (uint32_t v = 0; v < graph.values().size(); ++v)
    for (const int64_t dim : graph.spec(dag::ValueId{v}).shape) longest = std::max(longest, dim);
  const int64_t of_place = longest <= UINT16_MAX + 1 ? 2 : 4;
  std::vector<Bytes> bytes;
  for (const dag::ValueId input : graph.inputs()) {
    const dag::TensorSpec& spec = graph.spec(input);
    const bool is_narrowed = spec.dtype == dag::DType::I32 || spec.dtype == dag::DType::I64;
    bytes.push_back(is_narrowed ? Bytes{spec.element_count() * of_place} : spec.bytes());
  }
  return bytes;
}

DataLine data_line(const ClusterView& cluster, const dag::Graph& graph, uint32_t microbatches,
                   const Plan& plan) {
  const std::vector<Bytes> of_inputs = data_bytes(graph);
  std::map<uint32_t, double> bytes;
  for (size_t i = 0; i < of_inputs.size(); ++i) {
    const uint32_t stage = plan.stage_of_op[graph.value(graph.inputs()[i]).producer.index];
    bytes[plan.stages[stage].devices.front()] += static_cast<double>(of_inputs[i].value);
  }
  DataLine line;
  for (const auto& [device, of_one] : bytes)
    if (const double seconds = of_one * microbatches / cluster.devices()[device].downlink;
        seconds > line.seconds)
      line = {device, seconds};
  return line;
}

std::vector<double> incoming_seconds(const ClusterView& cluster, std::span<const AgreedLoad> tensors) {
  std::vector<double> incoming(cluster.devices().size(), 0);  // bytes
  for (const AgreedLoad& tensor : tensors)
    for (uint32_t replica = 0; replica < tensor.devices.size(); ++replica) {
      if (replica == tensor.owner) continue;
      incoming[tensor.devices[tensor.owner]] += static_cast<double>(tensor.bytes.value);
      incoming[tensor.devices[replica]] += static_cast<double>(tensor.bytes.value);
    }
  for (size_t device = 0; device < incoming.size(); ++device)
    incoming[device] /= cluster.devices()[device].downlink;
  return incoming;
}

}  // namespace weft::plan
