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
inline const std::vector<std::string> kAllGraphs = {"residual", "transformer", "dense", "fashion", "gpt"};

// A chain of `layers` linear layers with relu, widths by seed.
dag::Graph chain(uint64_t seed, int64_t layers, int64_t batch = 8);

// GPT-2 with a head of its own, in blocks of `width`, a sample a microbatch: GPT-2 XL by default.
struct DeepGpt {
  int64_t layers = 48, width = 1600, heads = 25, sequence = 1024, vocabulary = 50257;
};
dag::Graph deep_gpt(const DeepGpt& options = {});

plan::DeviceView device(std::string name, double gigaflops = 50, std::string region = "west",
                        std::string fingerprint = "cpu", Bytes memory = {int64_t{4} << 30});
// `count` devices named a, b, c, ..., all equal, links of that bandwidth and latency.
plan::ClusterView equal_devices(uint32_t count, double bytes_per_second = 125e6, Duration latency = {});
// Speeds, memory and links at random; regions of about three.
plan::ClusterView random_cluster(Rng& rng, uint32_t count);

}  // namespace weft::test
