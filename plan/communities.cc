#include "plan/communities.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/check.h"

namespace weft::plan {
namespace {

// A level's nodes: what was one community on the level below is one node here, its inner weight a loop.
struct Level {
  uint32_t nodes = 0;
  std::vector<double> weights;  // nodes x nodes; a loop counts its inner edges twice
  std::vector<double> degree;   // by node: of all its edges, the loop's too
  double total = 0;             // of all degrees

  double weight(uint32_t a, uint32_t b) const { return weights[size_t{a} * nodes + b]; }
};

Level make_level(uint32_t nodes, std::vector<double> weights) {
  Level level{nodes, std::move(weights), std::vector<double>(nodes, 0), 0};
  for (uint32_t a = 0; a < nodes; ++a)
    for (uint32_t b = 0; b < nodes; ++b) level.degree[a] += level.weight(a, b);
  level.total = std::accumulate(level.degree.begin(), level.degree.end(), 0.0);
  return level;
}

// Numbers communities by their first members.
uint32_t renumber(std::vector<uint32_t>& community_of) {
  std::vector<uint32_t> number(community_of.size(), ~0u);
  uint32_t next = 0;
  for (uint32_t& community : community_of) {
    if (number[community] == ~0u) number[community] = next++;
    community = number[community];
  }
  return next;
}

// Moves nodes between communities until none gains by it.
std::vector<uint32_t> move_nodes(const Level& level) {
  // What a move must gain of all weight: below, rounding could move a node for ever.
  const double least_gain = 1e-12 * level.total;
  std::vector<uint32_t> community_of(level.nodes);
  std::iota(community_of.begin(), community_of.end(), 0u);
  std::vector<double> degree_of = level.degree, to(level.nodes);
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t node = 0; node < level.nodes; ++node) {
      std::fill(to.begin(), to.end(), 0.0);
      for (uint32_t other = 0; other < level.nodes; ++other)
        if (other != node) to[community_of[other]] += level.weight(node, other);
      const uint32_t own = community_of[node];
      degree_of[own] -= level.degree[node];
      // Twice the gain in modularity, times all weight, of joining a community from being alone.
      const auto gain = [&](uint32_t community) {
        return to[community] - degree_of[community] * level.degree[node] / level.total;
      };
      uint32_t best = own;
      for (uint32_t community = 0; community < level.nodes; ++community)
        if (to[community] > 0 && gain(community) > gain(best) + least_gain) best = community;
      degree_of[best] += level.degree[node];
      community_of[node] = best;
      moved = moved || best != own;
    }
  }
  return community_of;
}

}  // namespace

std::vector<uint32_t> louvain(uint32_t nodes, std::span<const double> weights) {
  WEFT_CHECK(weights.size() == size_t{nodes} * nodes);
  std::vector<uint32_t> community_of(nodes);
  std::iota(community_of.begin(), community_of.end(), 0u);
  Level level = make_level(nodes, {weights.begin(), weights.end()});
  if (level.total <= 0) return community_of;
  for (;;) {
    std::vector<uint32_t> joined = move_nodes(level);
    const uint32_t count = renumber(joined);
    for (uint32_t& community : community_of) community = joined[community];
    if (count == level.nodes) break;
    std::vector<double> between(size_t{count} * count, 0);
    for (uint32_t a = 0; a < level.nodes; ++a)
      for (uint32_t b = 0; b < level.nodes; ++b)
        between[size_t{joined[a]} * count + joined[b]] += level.weight(a, b);
    level = make_level(count, std::move(between));
  }
  renumber(community_of);
  return community_of;
}

double modularity(uint32_t nodes, std::span<const double> weights, std::span<const uint32_t> community_of) {
  const Level level = make_level(nodes, {weights.begin(), weights.end()});
  if (level.total <= 0) return 0;
  std::vector<double> inner(nodes, 0), degree(nodes, 0);
  for (uint32_t a = 0; a < nodes; ++a) {
    degree[community_of[a]] += level.degree[a];
    for (uint32_t b = 0; b < nodes; ++b)
      if (community_of[a] == community_of[b]) inner[community_of[a]] += level.weight(a, b);
  }
  double sum = 0;
  for (uint32_t c = 0; c < nodes; ++c) {
    const double share = degree[c] / level.total;
    sum += inner[c] / level.total - share * share;
  }
  return sum;
}

namespace {

constexpr size_t kDevicesAlone = 64;

// Which node each device is part of. Beyond some devices those of one site with lines of about the same rate
// are one node: nodes then grow with sites, not with devices.
std::vector<uint32_t> nodes_of(const ClusterView& cluster, std::span<const uint32_t> devices) {
  std::vector<uint32_t> node_of(devices.size());
  std::iota(node_of.begin(), node_of.end(), 0u);
  if (devices.size() <= kDevicesAlone || cluster.has_pairs()) return node_of;
  std::map<std::pair<uint32_t, double>, uint32_t> nodes;
  for (size_t i = 0; i < devices.size(); ++i) {
    const DeviceView& device = cluster.devices()[devices[i]];
    const double line = std::min(device.uplink, device.downlink);
    const double quarter_octave = line == kUnlimited ? line : std::round(4 * std::log2(line));
    node_of[i] =
        nodes.try_emplace({device.site, quarter_octave}, static_cast<uint32_t>(nodes.size())).first->second;
  }
  return node_of;
}

}  // namespace

std::vector<std::vector<uint32_t>> communities(const ClusterView& cluster,
                                               std::span<const uint32_t> devices) {
  const std::vector<uint32_t> node_of = nodes_of(cluster, devices);
  std::vector<std::vector<uint32_t>> nodes;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (node_of[i] >= nodes.size()) nodes.emplace_back();
    nodes[node_of[i]].push_back(devices[i]);
  }
  const auto count = static_cast<uint32_t>(nodes.size());
  const auto weight = [&](uint32_t a, uint32_t b) {
    return std::min(cluster.link(a, b).bytes_per_second, cluster.link(b, a).bytes_per_second);
  };
  std::vector<double> weights(size_t{count} * count, 0);
  for (uint32_t a = 0; a < count; ++a)
    for (uint32_t b = 0; b < count; ++b) {
      const auto one = static_cast<double>(nodes[a].size()), other = static_cast<double>(nodes[b].size());
      if (a != b)
        weights[size_t{a} * count + b] = one * other * weight(nodes[a].front(), nodes[b].front());
      else if (nodes[a].size() > 1)
        weights[size_t{a} * count + a] = one * (one - 1) * weight(nodes[a][0], nodes[a][1]);
    }
  const std::vector<uint32_t> community_of = louvain(count, weights);
  std::vector<std::vector<uint32_t>> members;
  for (size_t i = 0; i < devices.size(); ++i) {
    const uint32_t community = community_of[node_of[i]];
    if (community >= members.size()) members.emplace_back();
    members[community].push_back(devices[i]);
  }
  return members;
}

}  // namespace weft::plan
