// A second opinion of our Louvain method: igraph's, on random weighted graphs.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "plan/communities.h"

#ifdef WEFT_HAS_IGRAPH
#include <igraph.h>
#endif

namespace weft::plan {
namespace {

#ifdef WEFT_HAS_IGRAPH

struct Weighted {
  uint32_t nodes = 0;
  std::vector<double> weights;
};

// Groups that are joined more closely than others, with as many edges as `density` says: some clear, some
// hardly there.
Weighted random_graph(Rng& rng) {
  Weighted graph{static_cast<uint32_t>(10 + rng.below(90)), {}};
  graph.weights.resize(size_t{graph.nodes} * graph.nodes, 0);
  const auto groups = static_cast<uint32_t>(1 + rng.below(8));
  const double density = 0.05 + 0.5 * rng.uniform(), between = rng.uniform();
  for (uint32_t a = 0; a < graph.nodes; ++a)
    for (uint32_t b = 0; b < a; ++b) {
      if (rng.uniform() > density) continue;
      const double weight = (a % groups == b % groups ? 1 : between) * (0.1 + rng.uniform());
      graph.weights[size_t{a} * graph.nodes + b] = graph.weights[size_t{b} * graph.nodes + a] = weight;
    }
  return graph;
}

std::vector<uint32_t> communities_of_igraph(const Weighted& graph, uint64_t seed) {
  igraph_rng_seed(igraph_rng_default(), seed);
  igraph_vector_int_t edges, membership;
  igraph_vector_t weights;
  igraph_vector_int_init(&edges, 0);
  igraph_vector_int_init(&membership, 0);
  igraph_vector_init(&weights, 0);
  for (uint32_t a = 0; a < graph.nodes; ++a)
    for (uint32_t b = 0; b < a; ++b)
      if (const double weight = graph.weights[size_t{a} * graph.nodes + b]; weight > 0) {
        igraph_vector_int_push_back(&edges, a);
        igraph_vector_int_push_back(&edges, b);
        igraph_vector_push_back(&weights, weight);
      }
  igraph_t made;
  igraph_create(&made, &edges, graph.nodes, IGRAPH_UNDIRECTED);
  EXPECT_EQ(igraph_community_multilevel(&made, &weights, 1, &membership, nullptr, nullptr), IGRAPH_SUCCESS);
  std::vector<uint32_t> found;
  for (uint32_t node = 0; node < graph.nodes; ++node)
    found.push_back(static_cast<uint32_t>(igraph_vector_int_get(&membership, node)));
  igraph_destroy(&made);
  igraph_vector_destroy(&weights);
  igraph_vector_int_destroy(&membership);
  igraph_vector_int_destroy(&edges);
  return found;
}

TEST(Louvain, IsAsGoodAsThatOfIgraph) {
  double ours = 0, theirs = 0, worst = 1;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 4);
    const Weighted graph = random_graph(rng);
    const double own = modularity(graph.nodes, graph.weights, louvain(graph.nodes, graph.weights));
    const double other = modularity(graph.nodes, graph.weights, communities_of_igraph(graph, seed));
    worst = std::min(worst, other > 0 ? own / other : 1);
    ours += own;
    theirs += other;
    EXPECT_GE(own, 0.9 * other);
  }
  std::cout << "modularity of all: ours " << ours << ", igraph's " << theirs << "; the worst graph " << worst
            << "\n";
  EXPECT_GE(ours, 0.98 * theirs);
}

#else

TEST(Louvain, IsAsGoodAsThatOfIgraph) { GTEST_SKIP() << "built without igraph (libigraph-dev)"; }

#endif

}  // namespace
}  // namespace weft::plan
