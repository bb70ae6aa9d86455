#include "dag/onnx/index_arithmetic.h"

namespace weft::onnx {

Result<Item> numbers(NodeContext& n, int64_t count) {
  if (count > (int64_t{1} << 20)) return n.unsupported("a dim of more than 2^20 elements");
  Tensor line({DType::I64, {count}});
  for (int64_t i = 0; i < count; ++i) line.mutable_as<int64_t>()[static_cast<size_t>(i)] = i;
  return n.constant(std::move(line));
}

Result<Item> counted_from_front(NodeContext& n, const Item& places, int64_t size) {
  WEFT_TRY(const Item negative, n.emit(OpKind::Less, {places, whole(n, 0)}));
  WEFT_TRY(const Item wrapped, n.emit(OpKind::Add, {places, whole(n, size)}));
  return n.emit(OpKind::Where, {negative, wrapped, places});
}

Result<Item> is_within(NodeContext& n, const Item& places, int64_t size) {
  WEFT_TRY(const Item low, n.emit(OpKind::GreaterEqual, {places, whole(n, 0)}));
  WEFT_TRY(const Item high, n.emit(OpKind::Less, {places, whole(n, size)}));
  return n.emit(OpKind::And, {low, high});
}

}  // namespace weft::onnx
