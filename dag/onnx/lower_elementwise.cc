// Arithmetic, comparison and logic, element by element.
#include <algorithm>
#include <limits>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

struct UnaryRow {
  std::string_view op_type;
  OpKind kind;
  OperandSet gradient = kAllOperands;
};
constexpr UnaryRow kUnary[] = {
    {"Neg", OpKind::Neg},
    {"Abs", OpKind::Abs},
    {"Sign", OpKind::Sign, kNoOperand},
    {"Exp", OpKind::Exp},
    {"Log", OpKind::Log},
    {"Sqrt", OpKind::Sqrt},
    {"Reciprocal", OpKind::Reciprocal},
    {"Sin", OpKind::Sin},
    {"Cos", OpKind::Cos},
    {"Tan", OpKind::Tan},
    {"Asin", OpKind::Asin},
    {"Acos", OpKind::Acos},
    {"Atan", OpKind::Atan},
    {"Sinh", OpKind::Sinh},
    {"Cosh", OpKind::Cosh},
    {"Asinh", OpKind::Asinh},
    {"Acosh", OpKind::Acosh},
    {"Atanh", OpKind::Atanh},
    {"Tanh", OpKind::Tanh},
    {"Sigmoid", OpKind::Sigmoid},
    {"Erf", OpKind::Erf},
    {"Softplus", OpKind::Softplus},
    {"Floor", OpKind::Floor, kNoOperand},
    {"Ceil", OpKind::Ceil, kNoOperand},
    {"Round", OpKind::Round, kNoOperand},
    {"Not", OpKind::Not, kNoOperand},
    {"IsNaN", OpKind::IsNaN, kNoOperand},
    {"BitwiseNot", OpKind::BitNot, kNoOperand},
};

constexpr UnaryRow kBinary[] = {
    {"Add", OpKind::Add},
    {"Sub", OpKind::Sub},
    {"Mul", OpKind::Mul},
    {"Div", OpKind::Div},
    {"Pow", OpKind::Pow},
    {"And", OpKind::And, kNoOperand},
    {"Or", OpKind::Or, kNoOperand},
    {"Xor", OpKind::Xor, kNoOperand},
    {"BitwiseAnd", OpKind::BitAnd, kNoOperand},
    {"BitwiseOr", OpKind::BitOr, kNoOperand},
    {"BitwiseXor", OpKind::BitXor, kNoOperand},
    {"Equal", OpKind::Equal, kNoOperand},
    {"Less", OpKind::Less, kNoOperand},
    {"Greater", OpKind::Greater, kNoOperand},
    {"LessOrEqual", OpKind::LessEqual, kNoOperand},
    {"GreaterOrEqual", OpKind::GreaterEqual, kNoOperand},
};

template <size_t N>
OpKind kind_of(const UnaryRow (&rows)[N], std::string_view op_type) {
  for (const UnaryRow& row : rows)
    if (row.op_type == op_type) return row.kind;
  check_failed("op in table", __FILE__, __LINE__, "");
}

Status lower_unary(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(n.emit(kind_of(kUnary, n.op_type()), {n.in(0)}));
}

// Before opset 7 the second operand broadcast only when told to, and from a given axis.
Result<Item> old_broadcast(NodeContext& n) {
  const Item& a = n.in(0);
  const Item& b = n.in(1);
  const int64_t axis = n.int_attr("axis", a.rank() - b.rank());
  if (n.int_attr("broadcast", 0) == 0 || b.rank() > a.rank()) return b;
  const int64_t start = axis < 0 ? axis + a.rank() : axis;
  if (start < 0 || start + b.rank() > a.rank()) return n.invalid("its axis is out of range");
  Shape shape = b.shape();
  shape.resize(static_cast<size_t>(a.rank() - start), 1);
  return n.reshape(b, std::move(shape));
}

Status lower_binary(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  Item b = n.in(1);
  if (n.opset() < 7) {
    WEFT_TRY(b, old_broadcast(n));
  }
  return n.give(n.emit(kind_of(kBinary, n.op_type()), {n.in(0), b}));
}

Status lower_mod(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const int64_t fmod = n.int_attr("fmod", 0);
  if (fmod != 0 && fmod != 1) return n.invalid("fmod is neither 0 nor 1");
  return n.give(n.emit(OpKind::Mod, {n.in(0), n.in(1)}, {{Attr::Fmod, fmod}}));
}

Status lower_bit_shift(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const std::string direction = n.string_attr("direction", "");
  if (direction != "LEFT" && direction != "RIGHT")
    return n.invalid("its direction is '" + direction.substr(0, 32) + "'");
  return n.give(n.emit(direction == "LEFT" ? OpKind::ShiftLeft : OpKind::ShiftRight, {n.in(0), n.in(1)}));
}

// Any number of operands, combined from left to right.
Result<Item> combine(NodeContext& n, OpKind kind) {
  WEFT_TRY_STATUS(n.need(std::max<size_t>(n.count(), 1)));
  Item total = n.in(0);
  for (size_t i = 1; i < n.count(); ++i) {
    WEFT_TRY(total, n.emit(kind, {total, n.in(i)}));
  }
  return total;
}
Status lower_sum(NodeContext& n) { return n.give(combine(n, OpKind::Add)); }
Status lower_max(NodeContext& n) { return n.give(combine(n, OpKind::Max)); }
Status lower_min(NodeContext& n) { return n.give(combine(n, OpKind::Min)); }
Status lower_mean(NodeContext& n) {
  WEFT_TRY(const Item sum, combine(n, OpKind::Add));
  if (n.count() == 1) return n.give(sum);
  return n.give(n.emit(OpKind::Div, {sum, n.like(sum, static_cast<double>(n.count()))}));
}

Status lower_where(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  return n.give(n.emit(OpKind::Where, {n.in(0), n.in(1), n.in(2)}));
}

Status lower_is_inf(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const bool negative = n.int_attr("detect_negative", 1) != 0;
  const bool positive = n.int_attr("detect_positive", 1) != 0;
  WEFT_TRY(Item is_inf, n.emit(OpKind::IsInf, {n.in(0)}));
  if (negative && positive) return n.give(is_inf);
  if (!negative && !positive) return n.give(n.expand(n.scalar(DType::Bool, 0), n.in(0).shape()));
  WEFT_TRY(Item sign, n.emit(negative ? OpKind::Less : OpKind::Greater, {n.in(0), n.like(n.in(0), 0)}));
  return n.give(n.emit(OpKind::And, {is_inf, sign}));
}

Status lower_cast(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  if (const auto weight = n.stored_weight(); weight && n.keeps(*weight)) return n.give(n.whole(*weight));
  const int64_t to = n.int_attr("to", 0);
  const auto dtype = dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(to, -1, 1000)));
  if (!dtype) return n.refuse(dtype.error().code, dtype.error().message);
  return n.give(n.cast(n.in(0), *dtype));
}
Status lower_cast_like(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  return n.give(n.cast(n.in(0), n.in(1).dtype()));
}

// The same bits under another type of as many.
Status lower_bit_cast(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t to = n.int_attr("to", 0);
  const auto dtype = dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(to, -1, 1000)));
  if (!dtype) return n.refuse(dtype.error().code, dtype.error().message);
  if (*dtype == x.dtype()) return n.give(x);
  if (dag::element_size(*dtype) != dag::element_size(x.dtype()))
    return n.invalid("a value of " + std::string(to_string(*dtype)) + " has not as many bits as one of " +
                     std::string(to_string(x.dtype())));
  if (*dtype == DType::Bool || x.dtype() == DType::Bool) return n.unsupported("the bits of truth values");
  if (!x.known) return n.unsupported("the bits of values that are only known when the model runs");
  return n.give(n.large_constant(dag::Tensor({*dtype, x.shape()}, x.known->bytes())));
}

Status lower_identity(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(n.in(0));
}

// min(max(x, low), high) for bounds that are tensors, or for integers, whose bounds a double may not hold.
Result<Item> clip_by_ops(NodeContext& n, const Item* low, const Item* high) {
  Item y = n.in(0);
  if (low) {
    WEFT_TRY(y, n.emit(OpKind::Max, {y, *low}));
  }
  if (high) {
    WEFT_TRY(y, n.emit(OpKind::Min, {y, *high}));
  }
  return y;
}

// The bounds as attributes. REQUIRES: those that are there are known.
Result<Attributes> known_bounds(NodeContext& n, const Item* low, const Item* high) {
  Attributes attributes;
  for (const auto& [bound, attr] : {std::pair{low, Attr::Min}, std::pair{high, Attr::Max}}) {
    if (!bound) continue;
    if (bound->spec.element_count() != 1) return n.invalid("its bounds are not scalars");
    attributes.set(attr, to_doubles(*bound->known)[0]);
  }
  return attributes;
}

// A clip to [0, 6] is ReLU6, which no file can tell from a clamp: its slope at 0 is 0, and a channel that is
// constant over the batch stands exactly there after its normalisation.
Result<Item> clip_by_numbers(NodeContext& n, Item x, Attributes attributes) {
  if (attributes.get_double(Attr::Min, -1) == 0 && attributes.get_double(Attr::Max) == 6) {
    WEFT_TRY(x, n.emit(OpKind::Relu, {x}));
  }
  return n.emit(OpKind::Clip, {x}, std::move(attributes));
}

Status lower_clip(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  Attributes attributes;
  if (n.opset() < 11) {
    if (n.has_attr("min")) attributes.set(Attr::Min, n.float_attr("min", 0));
    if (n.has_attr("max")) attributes.set(Attr::Max, n.float_attr("max", 0));
    return n.give(n.emit(OpKind::Clip, {x}, std::move(attributes)));
  }
  const Item* low = n.has(1) ? &n.in(1) : nullptr;
  const Item* high = n.has(2) ? &n.in(2) : nullptr;
  if (!low && !high) return n.give(x);
  const bool known = (!low || low->known) && (!high || high->known);
  if (known) {
    WEFT_TRY(attributes, known_bounds(n, low, high));
  }
  if (known && is_float(x.dtype())) return n.give(clip_by_numbers(n, x, std::move(attributes)));
  WEFT_TRY(Item y, clip_by_ops(n, low, high));
  if (known && x.as_float) {  // exporters narrow a quantised range so
    WEFT_TRY(const Item kept, n.emit(OpKind::Clip, {*x.as_float}, std::move(attributes)));
    y.as_float = std::make_shared<const Item>(kept);
  }
  return n.give(y);
}

}  // namespace

std::span<const LowerRow> elementwise_lowerings() {
  static const std::vector<LowerRow> kRows = [] {
    std::vector<LowerRow> all = {
        {"Mod", lower_mod},
        {"Sum", lower_sum},
        {"Max", lower_max},
        {"Min", lower_min},
        {"Mean", lower_mean},
        {"BitShift", lower_bit_shift, kNoOperand},
        {"Where", lower_where, operands(1, 2)},
        {"IsInf", lower_is_inf, kNoOperand},
        {"Cast", lower_cast, kWhenToFloat},
        {"CastLike", lower_cast_like, operands(0)},
        {"BitCast", lower_bit_cast, kNoOperand},
        {"Identity", lower_identity},
        {"Clip", lower_clip},
    };
    for (const UnaryRow& row : kUnary) all.push_back({row.op_type, lower_unary, row.gradient});
    for (const UnaryRow& row : kBinary) all.push_back({row.op_type, lower_binary, row.gradient});
    return all;
  }();
  return kRows;
}

}  // namespace weft::onnx
