// Louvain's method: planted groups are found, no single move and no merge of two communities is left that
// would gain, and on graphs small enough to try every grouping it comes near the best.
#include "plan/communities.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/rng.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

struct Weighted {
  uint32_t nodes = 0;
  std::vector<double> weights;
  double& at(uint32_t a, uint32_t b) { return weights[size_t{a} * nodes + b]; }
};

Weighted planted(Rng& rng, uint32_t nodes, uint32_t groups, double within, double between) {
  Weighted graph{nodes, std::vector<double>(size_t{nodes} * nodes, 0)};
  for (uint32_t a = 0; a < nodes; ++a)
    for (uint32_t b = 0; b < a; ++b)
      graph.at(a, b) = graph.at(b, a) = (a % groups == b % groups ? within : between) * (0.5 + rng.uniform());
  return graph;
}

TEST(Louvain, FindsPlantedGroups) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const auto groups = static_cast<uint32_t>(2 + rng.below(5));
    const Weighted graph = planted(rng, groups * static_cast<uint32_t>(3 + rng.below(6)), groups, 10, 0.1);
    const auto found = louvain(graph.nodes, graph.weights);
    for (uint32_t node = 0; node < graph.nodes; ++node) EXPECT_EQ(found[node], node % groups);
  }
}

TEST(Louvain, IsNearTheBestGroupingOfSmallGraphs) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 2);
    const Weighted graph = planted(rng, static_cast<uint32_t>(3 + rng.below(5)), 2, 1, rng.uniform());
    double best = -1;
    std::vector<uint32_t> grouping(graph.nodes, 0);
    const std::function<void(uint32_t, uint32_t)> try_all = [&](uint32_t node, uint32_t groups) {
      if (node == graph.nodes) {
        best = std::max(best, modularity(graph.nodes, graph.weights, grouping));
        return;
      }
      for (uint32_t group = 0; group <= groups; ++group) {
        grouping[node] = group;
        try_all(node + 1, std::max(groups, group + 1));
      }
    };
    try_all(0, 0);
    const auto found = louvain(graph.nodes, graph.weights);
    EXPECT_GE(modularity(graph.nodes, graph.weights, found), best - 0.05);
  }
}

TEST(Louvain, LeavesNoMoveThatGains) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 3);
    const Weighted graph = planted(rng, static_cast<uint32_t>(6 + rng.below(20)), 3, 2, 1);
    const auto found = louvain(graph.nodes, graph.weights);
    const double reached = modularity(graph.nodes, graph.weights, found);
    const uint32_t count = *std::max_element(found.begin(), found.end()) + 1;
    for (uint32_t a = 0; a < count; ++a)
      for (uint32_t b = 0; b < a; ++b) {
        auto merged = found;
        std::replace(merged.begin(), merged.end(), a, b);
        EXPECT_LE(modularity(graph.nodes, graph.weights, merged), reached + 1e-9);
      }
    EXPECT_EQ(louvain(graph.nodes, graph.weights), found) << "the same graph, the same communities";
  }
}

TEST(Louvain, TakesWhatHasNoEdges) {
  EXPECT_TRUE(louvain(0, {}).empty());
  EXPECT_EQ(louvain(3, std::vector<double>(9, 0)), (std::vector<uint32_t>{0, 1, 2}));
}

TEST(Communities, AreTheRegionsOfACluster) {
  std::vector<DeviceView> devices;
  for (const char* name : {"w1", "e1", "n1", "w2", "e2", "n2", "w3"})
    devices.push_back(test::device(name, 50, std::string(1, name[0])));
  ClusterView cluster(devices);
  for (size_t a = 0; a < devices.size(); ++a)
    for (size_t b = 0; b < devices.size(); ++b)
      cluster.set_link(a, b, {devices[a].region == devices[b].region ? 1.25e9 : 12.5e6, {}});
  const std::vector<uint32_t> all{0, 1, 2, 3, 4, 5, 6};
  EXPECT_EQ(communities(cluster, all), (std::vector<std::vector<uint32_t>>{{0, 3, 6}, {1, 4}, {2, 5}}));
}

// A thousand devices whose own lines differ: as many nodes as there are kinds of them, and the same groups.
TEST(Communities, OfManyDevicesAreTheRegionsToo) {
  const uint64_t seed = 5;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 1);
  std::vector<DeviceView> devices;
  for (uint32_t i = 0; i < 1000; ++i) {
    devices.push_back(test::device("d" + std::to_string(i), 50, "r" + std::to_string(i % 8)));
    devices.back().site = i % 8;
    devices.back().uplink = 1e8 * (1 + rng.uniform());
    devices.back().downlink = 1e8 * (1 + rng.uniform());
  }
  ClusterView cluster(devices);
  for (uint32_t a = 0; a < 8; ++a)
    for (uint32_t b = 0; b < 8; ++b) cluster.set_between(a, b, {a == b ? 1.25e9 : 2e6, {}});
  std::vector<uint32_t> all(1000);
  std::iota(all.begin(), all.end(), 0u);
  const auto found = communities(cluster, all);
  ASSERT_EQ(found.size(), 8u);
  for (const auto& group : found) {
    EXPECT_EQ(group.size(), 125u);
    for (const uint32_t device : group) EXPECT_EQ(device % 8, group.front() % 8);
  }
}

}  // namespace
}  // namespace weft::plan
