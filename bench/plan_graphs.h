// The graphs and clusters that bench/plan plans.
#pragma once

#include <cstdint>

#include "dag/graph.h"
#include "plan/cluster.h"

namespace weft::plan {

// A training step of a network of so many residual blocks, before lowering.
dag::Graph residual_step(int64_t blocks);
// A training step of GPT-2 small with sequences of 128 tokens, before lowering. The output's weight is the
// embedding's.
dag::Graph gpt2_step(int64_t batch);

// Devices of five speeds in regions of twelve, of 1 Gbit/s within and 20 to 200 Mbit/s between.
ClusterView world(uint32_t count);

struct HomesOptions {
  uint32_t sites = 12;
  uint32_t devices_each = 2;
  double megabits = 100;  // the slowest line; others have up to ten times as much
  double memory_gib = 10;
  bool equal = false;  // all devices of one speed
};
// Homes with a few GPUs each: 1 Gbit/s within, each device behind a line of its own.
ClusterView homes(const HomesOptions& options);

}  // namespace weft::plan
