// The values of a graph that go from position to position.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "plan/model.h"

namespace weft::plan {

// REQUIRES: the model's positions, and the model for as long as this lives.
class Traffic {
 public:
  explicit Traffic(const Model& model) : model_(model), graph_(*model.graph), users_(graph_.users()) {}

  // Each value that crosses borders at all: where it is made, and where it is read, ascending.
  using VisitValue = std::function<void(uint32_t from, const std::vector<uint32_t>& readers, int64_t bytes)>;
  void for_each_value(const VisitValue& visit) const;

  // Each sum of cotangents that the stage with all its terms makes (dag::move_sums): that stage returns one
  // value less when it begins at one of `begins` (first, last) and ends behind `high`. Of a term that others
  // read where the sum was, nothing is saved.
  using VisitSum = std::function<void(std::pair<uint32_t, uint32_t> begins, uint32_t high, int64_t bytes)>;
  void for_each_sum(const VisitSum& visit) const;

 private:
  uint32_t lowest_other_reader(dag::ValueId term, uint32_t sum) const;

  const Model& model_;
  const dag::Graph& graph_;
  std::vector<std::vector<dag::OpId>> users_;
};

// Bytes that cross each border, both ways; border b is before position b.
std::vector<int64_t> bytes_over_borders(const Model& model);

// Two pieces that one stage has: the positions before `head_end`, and those from `tail_begin` on.
struct Ends {
  uint32_t head_end = 0, tail_begin = 0;
};
// What is made in one of `together`'s pieces for the other does not cross.
Crossing make_crossing(const Model& model);
Crossing make_crossing(const Traffic& traffic, uint32_t positions, const Ends& together);

}  // namespace weft::plan
