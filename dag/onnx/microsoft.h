// Operators of the domain com.microsoft: what lower_microsoft.cc, which holds their rows, and
// lower_microsoft_attention.cc share.
#pragma once

#include <initializer_list>
#include <utility>

#include "dag/onnx/lowering.h"

namespace weft::onnx {

// Integer attributes that must be absent or have the value at which they change nothing; Unsupported else.
Status need_ints(NodeContext& n, std::initializer_list<std::pair<const char*, int64_t>> neutral);
// Operands that must be absent, by number and what they are; Unsupported else.
Status need_absent(NodeContext& n, std::initializer_list<std::pair<size_t, const char*>> operands);
// x plus an operand, x itself where the node has none.
Result<Item> add_if_there(NodeContext& n, const Item& x, size_t operand);

// input [B, S, I], weights [I, 3 heads' sizes], bias?, mask?, past?, attention bias?
Status lower_packed_attention(NodeContext& n);
Status lower_multi_head_attention(NodeContext& n);
// A prompt without a past, as training has it: what stands behind a sequence's end is masked by causality.
Status lower_group_query_attention(NodeContext& n);
// x, positions (of each element, or of the first), cos, sin
Status lower_rotary(NodeContext& n);

}  // namespace weft::onnx
