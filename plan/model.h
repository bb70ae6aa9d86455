// A graph as a planner sees it: a row of positions between which stages may be cut, with what each position
// costs, holds and exchanges with the others.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"
#include "dag/graph.h"
#include "dag/lower.h"
#include "plan/cost.h"

namespace weft::plan {

// Bytes that a stage of positions [begin, end) exchanges with the stages before it, a microbatch.
class Crossing {
 public:
  Crossing() = default;
  explicit Crossing(uint32_t positions)
      : size_(positions + 1), received_(size_ * size_, 0), returned_(size_ * size_, 0) {}

  // Values from earlier positions that the stage reads, each once.
  int64_t received(uint32_t begin, uint32_t end) const { return received_[begin * size_ + end]; }
  // Values of the stage that earlier positions read (cotangents), each once.
  int64_t returned(uint32_t begin, uint32_t end) const { return returned_[begin * size_ + end]; }

 private:
  friend class CrossingBuilder;
  size_t size_ = 0;
  std::vector<int64_t> received_, returned_;
};

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
  // changes an initializer that is the other, or they form a cycle of such. In forward, values go from lower
  // positions to higher ones; in backward, from higher to lower.
  uint32_t positions = 0;
  std::vector<uint32_t> position_of_op;
  // Bytes of all positions before one, by position and one more. Parameters: initializers with a gradient;
  // saved: forward values that backward reads.
  struct HeldBefore {
    std::vector<int64_t> parameters, other, saved, parameter_count;
  } held_before;
  Crossing crossing;
};

// `classes`: the graph as each class of devices runs it; empty: one class, which runs it as it is. At most
// `positions_max` positions: neighbours with little work become one.
Model make_model(const dag::Graph& graph, std::span<const std::shared_ptr<const dag::Lowered>> classes = {},
                 uint32_t positions_max = 512);

// Seconds of one microbatch by position on a device, gradients added up when `accumulates`.
std::vector<double> seconds_of_positions(const Model& model, uint32_t device_class, const Rates& rates,
                                         bool accumulates);

}  // namespace weft::plan
