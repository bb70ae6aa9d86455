// Cases of every op, over random shapes and values: one list for the gradient test, for a backend against the
// reference, and for benches. The values keep away from kinks, so that derivatives exist, and from the edges
// of domains.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dag/graph.h"

namespace weft::dag {

struct OpCase {
  std::string name;  // unique within a list: "ReduceMax axis"
  OpKind kind = OpKind::Neg;
  Attributes attributes;
  std::vector<std::optional<Tensor>> inputs;  // nullopt: an absent optional operand
  double tolerance = 1e-5;  // of float32 kernels against the reference, relative to the largest element
  std::vector<size_t> no_gradient;  // float operands that get no cotangent, by the op's contract
  bool smooth = true;               // central differences make sense (rounding does not have them)
};

// The same list for the same seed. Every op kind but the leaves has a case.
std::vector<OpCase> all_op_cases(uint64_t seed);

// The case as a graph: an Input per present operand, then the op. Never refused.
struct OpCaseGraph {
  GraphBuilder builder;
  std::vector<ValueId> inputs;  // as OpCase::inputs; invalid where absent
  std::vector<ValueId> outputs;
};
OpCaseGraph build_op_case(const OpCase& op_case);

}  // namespace weft::dag
