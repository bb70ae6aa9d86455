// What running a piece of a graph costs: work and bytes, and with a device's rates the seconds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "dag/slots.h"
#include "plan/device.h"

namespace weft::plan {

// One kernel's work, whatever device runs it. A group without kernel (a leaf, a view) costs nothing.
struct GroupCost {
  uint32_t begin = 0, end = 0;  // the ops of the graph, when they stand next to each other
  dag::Phase phase = dag::Phase::Forward;
  bool has_kernel = false;
  FlopCount matmul, convolution;
  FlopCount arithmetic;  // of ops that are neither
  Bytes moved;           // read and written, each value once
  Unit unit = Unit::Elementwise;
  // How much of its work goes at the rate of what is small: 0 (kLargeOutputs and more) to 1 (kSmallOutputs),
  // or more; of depthwise ones by image.
  double small = 0;
  double spread = 1;  // times its work takes where strides have it read, or write, more: of depthwise ones
};

// The cost of running `ops` as one kernel that reads `inputs` and writes `outputs`.
GroupCost cost_of_group(const dag::Graph& graph, std::span<const dag::OpId> ops,
                        std::span<const dag::ValueId> inputs, std::span<const dag::ValueId> outputs);

// By fusion group of a lowered graph, in its order; ops without a group are groups of their own, leaves too.
std::vector<GroupCost> group_costs(const dag::Graph& graph);

// Grows with work and bytes. With rates by unit: the launch, computing and moving, one after the other.
// Without: the launch and the longer of the two.
double seconds_of(const GroupCost& cost, const Rates& rates);

// What the optimizer adds for a parameter of that size: the update once a step, on average of those among
// which slots are; and adding a microbatch's gradient to the sum.
double update_seconds(Bytes parameter, const dag::BesideParameter& beside, const Rates& rates);
double accumulate_seconds(Bytes parameter, const Rates& rates);

}  // namespace weft::plan
