// A graph as a planner sees it: a row of positions between which stages may be cut, with what each position
// costs, holds and exchanges with the others.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "dag/lower.h"
#include "plan/cost.h"
#include "plan/crossing.h"
#include "plan/range_max.h"
#include "plan/ring.h"

namespace weft::plan {

struct Model {
  const dag::Graph* graph = nullptr;  // before lowering
  // The graph for one class of devices, and what its groups cost.
  struct Class {
    std::shared_ptr<const dag::Lowered> lowered;
    std::vector<GroupCost> groups;
    std::vector<uint32_t> position_of_group;
  };
  std::vector<Class> classes;
  // Ops of one position are never cut apart: they share a fusion group of some class or an origin, or one
  // changes an initializer that is the other, or works on a single number that the other makes, or they form
  // a cycle of such. In forward, values go from lower
  // positions to higher ones; in backward, from higher to lower.
  uint32_t positions = 0;
  std::vector<uint32_t> position_of_op;
  // Bytes of all positions before one, by position and one more. Parameters: initializers with a gradient;
  // saved: forward values that backward reads; data: what the broker sends for a microbatch.
  struct HeldBefore {
    // `fixed`: of `other`, what never changes, and is in no copy.
    std::vector<int64_t> parameters, other, fixed, saved, parameter_count, data;
  } held_before;
  // Bytes, by position: the widest kernel's scratch (of classes that differ, of the one that needs least),
  // and the largest gradient, which lies in memory until it has been added up.
  RangeMax workspace, gradient;
  Crossing crossing;
  std::optional<Ring> ring;  // where something ties the row's ends to each other
};

// Frozen, or a constant that is too large to be folded.
inline bool is_fixed(const dag::Initializer& initializer) {
  return initializer.role == dag::InitializerRole::Frozen || initializer.role == dag::InitializerRole::Buffer;
}

// Bytes of scratch that a group's kernel takes. A convolution's weight gradient is summed up in pieces, each
// as large as the weights.
int64_t workspace_of(const Model::Class& of, const GroupCost& group);

// `classes`: the graph as each class of devices runs it; empty: one class, which runs it as it is. At most
// `positions_max` positions: neighbours with little work become one.
Model make_model(const dag::Graph& graph, std::span<const std::shared_ptr<const dag::Lowered>> classes = {},
                 uint32_t positions_max = 512);

// Seconds of one microbatch by position on a device, gradients added up when `accumulates`.
std::vector<double> seconds_of_positions(const Model& model, uint32_t device_class, const Rates& rates,
                                         bool accumulates);

}  // namespace weft::plan
