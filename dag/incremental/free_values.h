// Internal to dag/incremental: values that are the same for all tokens (weights, tables, masks), in the graph
// of a part: whole, or at the positions that are computed and looked at.
#pragma once

#include <map>
#include <string>
#include <utility>

#include "dag/incremental/analysis.h"

namespace weft::dag::incremental {

// A constant that the parts' graphs read as an initializer of that name.
bool is_table(const Graph& graph, const Op& op);
std::string table_name(ValueId value);

class FreeValues {
 public:
  // `builder` outlives it.
  FreeValues(const Analysis& analysis, const Lengths& lengths, GraphBuilder& builder)
      : analysis_(analysis), graph_(*analysis.graph), lengths_(lengths), builder_(builder) {}

  void set_positions(ValueId positions) { positions_ = positions; }
  ValueId positions() const { return positions_; }

  ValueId whole(ValueId value);
  // Its rows at `positions`, its keys from the first to the last that the caches hold; whole without either.
  ValueId at(ValueId value, const Axes& axes) { return at(value, axes, 0); }

 private:
  ValueId at(ValueId value, const Axes& axes, int depth);
  ValueId earlier(const Op& op, const Axes& axes, int depth);
  ValueId elementwise(const Op& op, const Axes& axes, int depth);
  ValueId reshaped(const Op& op, const Axes& axes, int depth);
  ValueId transposed(const Op& op, const Axes& axes, int depth);
  ValueId expanded(const Op& op, const Axes& axes, int depth);
  ValueId gathered(const Op& op, const Axes& axes, int depth);
  ValueId sliced(const Op& op, const Axes& axes, int depth);
  ValueId concatenated(const Op& op, const Axes& axes, int depth);
  ValueId multiplied(const Op& op, const Axes& axes, int depth);
  ValueId gather_rows(ValueId value, int64_t axis, int64_t first);
  ValueId taken(ValueId value, const Axes& axes);
  ValueId reshape(ValueId value, Shape shape);
  Axes against(ValueId operand, const Axes& axes) const;
  void copy(OpId id);

  const Analysis& analysis_;
  const Graph& graph_;
  Lengths lengths_;
  GraphBuilder& builder_;
  ValueId positions_;
  std::map<ValueId, ValueId> whole_;
  std::map<std::pair<ValueId, std::string>, ValueId> at_;
};

}  // namespace weft::dag::incremental
