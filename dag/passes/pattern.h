// Internal to dag/passes: looking at a graph backwards from a value.
#pragma once

#include <cmath>
#include <optional>

#include "dag/graph.h"

namespace weft::dag::pattern {

// The op that produces `value`, when it is of `kind`.
inline const Op* match(const Graph& graph, ValueId value, OpKind kind) {
  if (!value.valid()) return nullptr;
  const Op& op = graph.producer(value);
  return op.kind == kind ? &op : nullptr;
}

// The number that `value` always is: a float constant of one element.
inline std::optional<double> constant_scalar(const Graph& graph, ValueId value) {
  const Op* op = match(graph, value, OpKind::Constant);
  if (!op || !is_float(graph.spec(value).dtype) || graph.spec(value).element_count() != 1)
    return std::nullopt;
  return to_doubles(graph.constant(*op))[0];
}

// Constants in files are rounded to float32, sometimes after arithmetic in it.
inline bool is_about(double value, double expected) {
  return std::abs(value - expected) <= 1e-5 * std::abs(expected);
}

// A binary op with a constant scalar on one side: that number and the other operand.
struct WithScalar {
  double scalar = 0;
  ValueId other;
};
inline std::optional<WithScalar> with_scalar(const Graph& graph, const Op& op) {
  if (op.inputs.size() != 2) return std::nullopt;
  if (const auto right = constant_scalar(graph, op.inputs[1])) return WithScalar{*right, op.inputs[0]};
  if (const auto left = constant_scalar(graph, op.inputs[0])) return WithScalar{*left, op.inputs[1]};
  return std::nullopt;
}

}  // namespace weft::dag::pattern
