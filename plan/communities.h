// Which devices lie near each other: communities of the graph whose edges are weighted by bandwidth.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan/cluster.h"

namespace weft::plan {

// Louvain's method (Blondel, Guillaume, Lambiotte, Lefebvre 2008, "Fast unfolding of communities in large
// networks"): modularity is raised by moving one node after the other, in ascending order, into the
// neighbouring community that gains most (of equal ones the one with the lowest number) until nothing moves;
// then communities become nodes, and so on. The same graph gives the same communities.
// `weights`: of `nodes` x `nodes`, symmetric, not negative. By node: the number of its community, counted
// from 0 in the order of their first nodes. What stands at (a, a) is twice what a node weighs within.
std::vector<uint32_t> louvain(uint32_t nodes, std::span<const double> weights);

// sum over communities of (inner weight / all weight - (their nodes' weight / all weight)^2), each edge once.
double modularity(uint32_t nodes, std::span<const double> weights, std::span<const uint32_t> community_of);

// The devices of `devices` (indices into the cluster) by community, each ascending, communities by their
// first device. An edge weighs what the slower of its two directions carries. Of more than 64 devices those
// of one site with lines of about the same rate stay together.
std::vector<std::vector<uint32_t>> communities(const ClusterView& cluster, std::span<const uint32_t> devices);

}  // namespace weft::plan
