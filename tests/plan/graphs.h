// Graphs and clusters for the planner's tests.
#pragma once

#include <string>
#include <vector>

#include "base/rng.h"
#include "dag/graph.h"
#include "plan/plan.h"

namespace weft::test {

// Differentiated when it has a loss and `training`, and lowered as for a processor with AVX-512.
dag::Graph lowered(const dag::Graph& forward, bool training = true);

// "residual", "transformer" (tied embedding), "dense" (values with many readers), "fashion", "gpt" (the
// example files), as a training microbatch. Seeds vary the sizes of those that are built by hand.
dag::Graph training_graph(const std::string& name, uint64_t seed = 1);
// The evaluation graph of an example: "fashion" or "gpt".
dag::Graph evaluation_graph(const std::string& name);
inline const std::vector<std::string> kAllGraphs = {"residual", "transformer", "dense",
                                                    "rounded",  "fashion",     "gpt"};

// A chain of `layers` linear layers with relu, widths by seed.
dag::Graph chain(uint64_t seed, int64_t layers, int64_t batch = 8);
// So many frozen layers of width x width, and a head of `classes` that is trained.
dag::Graph frozen_below_a_head(int64_t layers, int64_t width, int64_t classes);
// So many such layers, each of one or two of the four before it: branches, and values that skip.
dag::Graph branches(uint64_t seed, int64_t layers);

// GPT-2's shape, batch 1, without weights: the head's weights are the embedding's when `tied`.
struct GptOptions {
  int64_t layers = 12, width = 768, heads = 12, vocabulary = 50257, tokens = 1024;
  bool tied = true;
};
dag::Graph gpt(const GptOptions& options);

plan::DeviceView device(std::string name, double gigaflops = 50, std::string region = "west",
                        std::string fingerprint = "cpu", Bytes memory = {int64_t{4} << 30});
// `count` devices named a, b, c, ..., all equal, links of that bandwidth and latency.
plan::ClusterView equal_devices(uint32_t count, double bytes_per_second = 125e6, Duration latency = {});
// Speeds, links and lines at random; regions of about three. Memory: `room`, and up to as much
// again.
plan::ClusterView random_cluster(Rng& rng, uint32_t count, double room = 4e9);

// The seeds that a test is to look at: WEFT_PLAN_SEEDS=N or FIRST-LAST, else the usual number of them.
struct Seeds {
  uint64_t first = 1, last = 1;
};
Seeds seeds(uint64_t usual);

}  // namespace weft::test
