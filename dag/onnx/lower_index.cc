// Picking elements by index, and masks by position.
#include <algorithm>

#include "dag/onnx/lowering.h"
#include "dag/onnx/selection.h"

namespace weft::onnx {
namespace {

Status lower_gather(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, n.in(0).rank()));
  return n.give(n.emit(OpKind::Gather, {n.in(0), n.in(1)}, {{Attr::Axis, axis}}));
}

Status lower_gather_elements(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, n.in(0).rank()));
  return n.give(n.emit(OpKind::GatherElements, {n.in(0), n.in(1)}, {{Attr::Axis, axis}}));
}

Status lower_one_hot(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  WEFT_TRY(const int64_t depth, n.one_int(1, "depth"));
  if (depth < 1 || depth > (int64_t{1} << 24)) return n.invalid("its depth is " + std::to_string(depth));
  if (n.in(2).shape() != Shape{2}) return n.invalid("its values are not two");
  WEFT_TRY(Item indices, n.cast(n.in(0), DType::I64));
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, indices.rank() + 1));
  // Negative indices count from the end; what is still out of range matches no position.
  const Item zero = n.scalar(DType::I64, 0);
  WEFT_TRY(const Item negative, n.emit(OpKind::Less, {indices, zero}));
  WEFT_TRY(const Item wrapped,
           n.emit(OpKind::Add, {indices, n.scalar(DType::I64, static_cast<double>(depth))}));
  WEFT_TRY(indices, n.emit(OpKind::Where, {negative, wrapped, indices}));
  Shape shape = indices.shape();
  shape.insert(shape.begin() + axis, 1);
  WEFT_TRY(indices, n.reshape(indices, shape));
  Shape line(shape.size(), 1);
  line[static_cast<size_t>(axis)] = depth;
  Tensor positions({DType::I64, line});
  for (int64_t i = 0; i < depth; ++i) positions.mutable_as<int64_t>()[static_cast<size_t>(i)] = i;
  WEFT_TRY(const Item hit, n.emit(OpKind::Equal, {indices, n.constant(positions)}));
  WEFT_TRY(Item off, n.slice(n.in(2), 0, 0, 1));
  WEFT_TRY(Item on, n.slice(n.in(2), 0, 1, 1));
  WEFT_TRY(off, n.reshape(off, {}));
  WEFT_TRY(on, n.reshape(on, {}));
  return n.give(n.emit(OpKind::Where, {hit, on, off}));
}

Status lower_trilu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  if (x.rank() < 2) return n.invalid("x " + to_string(x.spec) + " is not a matrix");
  int64_t k = 0;
  if (n.has(1)) {
    WEFT_TRY(k, n.one_int(1, "k"));
  }
  const bool upper = n.int_attr("upper", 1) != 0;
  const int64_t rows = x.shape()[x.shape().size() - 2];
  const int64_t columns = x.shape().back();
  if (rows * columns > n.options().limits.folded_value_bytes_max)
    return n.unsupported("a matrix of more than 8 MiB");
  k = std::clamp<int64_t>(k, -rows - 1, columns + 1);
  Tensor mask({DType::Bool, {rows, columns}});
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j)
      mask.mutable_as<uint8_t>()[static_cast<size_t>(i * columns + j)] = upper ? j - i >= k : j - i <= k;
  return n.give(n.emit(OpKind::Where, {n.constant(mask), x, n.like(x, 0)}));
}

constexpr LowerRow kIndexRows[] = {
    {"Gather", lower_gather, operands(0)},
    {"GatherElements", lower_gather_elements, operands(0)},
    {"OneHot", lower_one_hot, operands(2), operands(1)},
    {"Trilu", lower_trilu, operands(0), operands(1)},
    {"TopK", lower_top_k, operands(0), operands(1)},
    {"Compress", lower_compress, operands(0), operands(1)},
    {"NonZero", lower_non_zero, kNoOperand, operands(0)},
    {"Unique", lower_unique, kNoOperand, operands(0)},
    {"NonMaxSuppression", lower_non_max_suppression, kNoOperand, operands(0, 1, 2, 3, 4)},
};

}  // namespace

std::span<const LowerRow> index_lowerings() { return kIndexRows; }

}  // namespace weft::onnx
