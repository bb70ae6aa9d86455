// Internal to dag/incremental: one op's rule at work.
#pragma once

#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "dag/incremental/analysis.h"

namespace weft::dag::incremental {

// What a free value holds. Of two positions: where the key comes after the row.
struct Range {
  double low = 0, high = 0;
  // Of each row the largest (least) number at the keys up to it: the least (largest) of those, without rows
  // that see nothing but -inf (+inf).
  double least_seen = 0, largest_seen = 0;
};

// What is known of the values before an op, and what its rule finds.
class Rule {
 public:
  Rule(Analysis& analysis, OpId id, const Fold& fold, std::map<std::string, Range>& ranges)
      : analysis_(analysis), op_(analysis.graph->op(id)), id_(id), fold_(fold), ranges_(ranges) {
    operands_.resize(op_.inputs.size());
  }

  const Op& op() const { return op_; }
  OpId id() const { return id_; }
  size_t count() const { return op_.inputs.size(); }
  bool has(size_t i) const { return i < count() && op_.inputs[i].valid(); }
  const Trait& in(size_t i) const { return analysis_.values[op_.inputs[i].index]; }
  const Shape& shape(size_t i) const { return analysis_.graph->spec(op_.inputs[i]).shape; }
  const Shape& out_shape(size_t i = 0) const { return analysis_.graph->spec(op_.outputs[i]).shape; }
  bool is_free(size_t i) const { return in(i).free; }

  tl::unexpected<Error> refuse(const std::string& reason) const;

  // Operand i as it is: rows where it is not free, else the whole of it.
  void take(size_t i);
  void take(size_t i, Use use, Axes axes) { operands_[i] = {use, std::move(axes)}; }
  const Operand& taken(size_t i) const { return operands_[i]; }
  // Operand i stands against dims of the result, the last ones; what is free and as long as they are is a
  // table. Errors: Unsupported where positions would meet others than their own.
  Status align(const Shape& against, std::vector<Dim>& dims, std::span<const size_t> which);

  // Result i. Errors: Unsupported where it would hold more than one Row or Key.
  Status give(size_t i, Axes axes, Future future = Future::Open, double ceiling = 0);
  Status give_all(const Axes& axes);  // each result of that rank, with its own sizes of 1

  // Of operand i, a table, where a key that it is taken at comes after its row.
  Result<Range> range(size_t i);

  std::vector<Operand>& operands() { return operands_; }
  OpId pairs_by() const;

  // The op might do if operand i's keys were its rows, and its rows its keys: the product that made it is to
  // be turned. Of several the first that is not turned yet.
  void ask_to_turn(size_t i) {
    if (has(i) && in(i).is_pair()) turns_.push_back(in(i).pairs_by);
  }
  const std::vector<OpId>& turns() const { return turns_; }

 private:
  Analysis& analysis_;
  const Op& op_;
  OpId id_;
  const Fold& fold_;
  std::map<std::string, Range>& ranges_;
  std::vector<Operand> operands_;
  std::vector<OpId> turns_;
};

Status elementwise_rule(Rule& rule);
// `turned`: the left operand makes the keys, the right one the rows.
Status product_rule(Rule& rule, bool turned);
Status stored_rule(Rule& rule);  // products with, and rows of, weights in fewer bits
Status softmax_rule(Rule& rule);
Status reduction_rule(Rule& rule);
Status along_axis_rule(Rule& rule);  // ArgMax, TopK, CumSum
Status normalisation_rule(Rule& rule);
Status by_sample_rule(Rule& rule);  // what treats each sample by itself
Status shape_rule(Rule& rule);

inline constexpr double kMasked = -1e4;

}  // namespace weft::dag::incremental
