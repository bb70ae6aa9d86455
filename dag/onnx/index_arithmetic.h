// Internal to dag/onnx: integers of the graph that say where something lies.
#pragma once

#include "dag/onnx/lowering.h"

namespace weft::onnx {

// Exact for what counts elements: those are at most 2^40.
inline Item whole(NodeContext& n, int64_t value) { return n.scalar(DType::I64, static_cast<double>(value)); }

// 0, 1, ..., count-1 of I64.
Result<Item> numbers(NodeContext& n, int64_t count);
// Negative places count from the end of `size`.
Result<Item> counted_from_front(NodeContext& n, const Item& places, int64_t size);
// Bool: in [0, size).
Result<Item> is_within(NodeContext& n, const Item& places, int64_t size);

}  // namespace weft::onnx
