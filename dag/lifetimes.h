// Which values share bytes, and when each needs memory, when the groups of a graph run one after the other:
// what a memory plan places and what a planner counts. The whole graph at once, whatever stage runs what, so
// that a planner need not build the pieces.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "dag/graph.h"

namespace weft::dag {

// Whether `op`, alone in its group, needs no kernel: its output is its operand's bytes under another shape.
// Not so where it makes a gradient or a statistic of what somebody sends into the graph: that is there only
// from its segment on, and an alias has no moment at which it is computed.
bool is_alias(const Graph& graph, const Op& op);

// When what runs. Groups of one stage run one after the other; a group's ops run at one time.
struct RunOrder {
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> group_of_op;    // leaves have none
  std::vector<uint32_t> time_of_group;  // within its stage; an alias's group has none
  std::vector<uint32_t> stage_of_op;    // empty: all are of stage 0; kNone: does not count
  std::vector<uint32_t> ends;           // by stage: the time behind its last group
  // Within the stage, leaves' too: what runs in one go. Times ascend with segments; between two of them other
  // microbatches run. Empty: all in one, and what leaves the graph is kept until somebody has read it.
  std::vector<uint32_t> segment_of_op{};
};

struct Lifetime {
  uint32_t first = RunOrder::kNone, last = 0;  // times of the first and the last use, both included
  uint32_t first_segment = 0, last_segment = 0;
  bool needs_memory() const { return first != RunOrder::kNone; }
  bool crosses_segments() const { return first_segment != last_segment; }
};
// A value that another stage makes.
struct Received {
  ValueId value{};
  uint32_t stage = 0;    // reads it
  uint32_t segment = 0;  // of that stage: the first that does
  Lifetime lifetime{};   // result
};
struct Lifetimes {
  std::vector<uint32_t> root;      // by value: the value whose bytes it shows, itself where it has its own
  std::vector<Lifetime> of;        // by root, in the stage that makes it; initializers' and constants' too
  std::vector<Received> received;  // as asked for
};

// Graph inputs and received values live from the beginning of their segment, outputs and `kept` to the end of
// theirs, when the last group has run (gradients and state updates as long as others, for they are added or
// copied where they are made), all others from their group to their last reader; what lives within one group
// needs no memory. In a graph without segments the end is that of the stage: somebody may still read.
Lifetimes find_lifetimes(const Graph& graph, const RunOrder& order, std::span<const ValueId> kept,
                         std::vector<Received> received = {});

}  // namespace weft::dag
