// What one elementwise or random op does to an element, as an expression of the language of
// kernels/elements.cuh. The op alone and the op in a group are the same expression, and each result is a
// value of its dtype before the next op sees it: so fusing never changes a bit.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dag/graph.h"

namespace weft::peer::cuda {

// As values are held while computing: Bool is `bool`.
std::string_view register_type(dag::DType dtype);
// As they lie in memory: Bool is a byte, and true unless zero.
std::string_view memory_type(dag::DType dtype);

// A float's literal, to the bit.
std::string float_literal(float value);

// `operands`: an expression for each. `draw`: of random ops, the element's draw: 32 bits, or of RandomNormal
// the number drawn. None: the op is not served on these dtypes.
std::optional<std::string> element_expression(const dag::Graph& graph, const dag::Op& op,
                                              std::span<const std::string> operands, std::string_view draw);

}  // namespace weft::peer::cuda
