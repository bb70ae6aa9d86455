// Quantised values: integers that stand for floats, with gradients straight through.
//
// What QuantizeLinear makes is known twice: as integers, for whoever reads integers, and as the same numbers
// in floats, which DequantizeLinear goes on from. The gradient passes the rounding with slope 1 and stops
// where the range ends, so that a model exported from quantisation-aware training trains. Products of
// integers are exact.
#include <algorithm>
#include <cmath>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

struct Range {
  double low, high;
};
std::optional<Range> range_of(DType dtype) {
  switch (dtype) {
    case DType::U8:
      return Range{0, 255};
    case DType::I8:
      return Range{-128, 127};
    case DType::U16:
      return Range{0, 65535};
    case DType::I16:
      return Range{-32768, 32767};
    default:
      return std::nullopt;
  }
}

Result<DType> dtype_attr(NodeContext& n, std::string_view name, DType otherwise) {
  const int64_t given = n.int_attr(name, 0);
  if (given == 0) return otherwise;
  const auto dtype = dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(given, -1, 1000)));
  if (!dtype) return n.refuse(dtype.error().code, std::string(name) + ": " + dtype.error().message);
  return *dtype;
}
Result<DType> float_dtype_attr(NodeContext& n, std::string_view name, DType otherwise) {
  WEFT_TRY(const DType dtype, dtype_attr(n, name, otherwise));
  if (!is_float(dtype)) return n.invalid(std::string(name) + " is " + std::string(to_string(dtype)));
  return dtype;
}

bool all_zero(const Item& item) {
  if (!item.known) return false;
  const auto values = to_doubles(*item.known);
  return std::all_of(values.begin(), values.end(), [](double v) { return v == 0; });
}

// ---- scales and zero points: one for all of x, one a slice along an axis, or one a block of it ----

Result<Item> repeat_blocks(NodeContext& n, const Item& parameter, const Shape& x, int64_t block) {
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 1, static_cast<int64_t>(x.size())));
  const auto at = static_cast<size_t>(axis);
  Shape want = x;
  want[at] = x[at] / block + (x[at] % block != 0);
  if (parameter.shape() != want)
    return n.invalid("blocks of " + std::to_string(block) + " of x " + to_string(x) + " want scales " +
                     to_string(want) + ", not " + to_string(parameter.shape()));
  block = std::min(block, std::max<int64_t>(1, x[at]));
  Shape apart = want, repeated = want, whole = want;
  apart.insert(apart.begin() + axis + 1, 1);
  repeated.insert(repeated.begin() + axis + 1, block);
  whole[at] *= block;
  WEFT_TRY(Item y, n.reshape(parameter, apart));
  WEFT_TRY(y, n.expand(y, repeated));
  WEFT_TRY(y, n.reshape(y, whole));
  return n.slice(y, axis, 0, x[at]);
}

// In a shape that broadcasts against x.
Result<Item> spread(NodeContext& n, const Item& parameter, const Shape& x) {
  const int64_t block = n.int_attr("block_size", 0);
  if (block < 0) return n.invalid("block_size is " + std::to_string(block));
  if (block > 0) return repeat_blocks(n, parameter, x, block);
  if (parameter.spec.element_count() == 1 && parameter.rank() <= 1) return n.reshape(parameter, {});
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 1, static_cast<int64_t>(x.size())));
  if (parameter.shape() != Shape{x[static_cast<size_t>(axis)]})
    return n.invalid("a scale or zero point " + to_string(parameter.shape()) + " does not go with axis " +
                     std::to_string(axis) + " of x " + to_string(x));
  Shape shape(x.size(), 1);
  shape[static_cast<size_t>(axis)] = parameter.shape()[0];
  return n.reshape(parameter, shape);
}

// ---- QuantizeLinear, DequantizeLinear ----

// Whole numbers -> the nearest of the dtype, as floats and as integers that remember them. `four_bits`: it
// holds numbers of so many.
Result<Item> saturated(NodeContext& n, const Item& whole, DType dtype, bool four_bits = false) {
  std::optional<Range> range = range_of(dtype);
  if (four_bits) range = dtype == DType::I8 ? Range{-8, 7} : Range{0, 15};
  if (!range) return n.unsupported("it quantises to " + std::string(to_string(dtype)));
  WEFT_TRY(const Item kept,
           n.emit(OpKind::Clip, {whole}, {{Attr::Min, range->low}, {Attr::Max, range->high}}));
  WEFT_TRY(Item y, n.cast(kept, dtype));
  if (!y.known) y.as_float = std::make_shared<const Item>(kept);
  return y;
}

// In float32, which holds every value of the ranges.
Result<Item> zero_point(NodeContext& n, size_t operand, const Shape& x) {
  WEFT_TRY(const Item spread_out, spread(n, n.in(operand), x));
  return n.cast(spread_out, DType::F32);
}

Status lower_quantize(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(DType dtype, dtype_attr(n, "output_dtype", DType::U8));
  if (n.has(2)) dtype = n.in(2).dtype();
  if (!is_float(n.in(1).dtype())) return n.invalid("its scale is " + to_string(n.in(1).spec));
  WEFT_TRY(const DType precision, float_dtype_attr(n, "precision", n.in(1).dtype()));
  WEFT_TRY(Item scale, spread(n, n.in(1), x.shape()));
  WEFT_TRY(scale, n.cast(scale, precision));
  WEFT_TRY(Item y, n.cast(x, precision));
  WEFT_TRY(y, n.emit(OpKind::Div, {y, scale}));
  WEFT_TRY(y, n.emit(OpKind::RoundThrough, {y}));
  if (precision != DType::F64) {
    WEFT_TRY(y, n.cast(y, DType::F32));
  }
  if (n.has(2) && !all_zero(n.in(2))) {
    WEFT_TRY(Item zero, zero_point(n, 2, x.shape()));
    WEFT_TRY(zero, n.cast(zero, y.dtype()));
    WEFT_TRY(y, n.emit(OpKind::Add, {y, zero}));
  }
  return n.give(saturated(n, y, dtype, n.has(2) && n.in(2).four_bits));
}

// x - zero point. Of 32-bit integers in integers, since not every one is a float.
Result<Item> centred(NodeContext& n) {
  const Item& x = n.in(0);
  const bool shifted = n.has(2) && !all_zero(n.in(2));
  if (shifted && n.in(2).dtype() != x.dtype())
    return n.invalid("its zero point is " + to_string(n.in(2).spec) + " and x " + to_string(x.spec));
  if (!x.as_float && x.dtype() == DType::I32) {
    if (!shifted) return x;
    WEFT_TRY(const Item zero, spread(n, n.in(2), x.shape()));
    return n.emit(OpKind::Sub, {x, zero});
  }
  Item y = x.as_float ? *x.as_float : x;
  if (!x.as_float) {
    WEFT_TRY(y, n.cast(x, DType::F32));
  }
  if (!shifted) return y;
  WEFT_TRY(Item zero, zero_point(n, 2, x.shape()));
  WEFT_TRY(zero, n.cast(zero, y.dtype()));
  return n.emit(OpKind::Sub, {y, zero});
}

Status lower_dequantize(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  if (n.options().keep_stored || x.packed)
    if (const auto weight = n.stored_weight()) return n.give(n.whole(*weight));
  if (!range_of(x.dtype()) && x.dtype() != DType::I32)
    return n.unsupported("x is " + to_string(x.spec) + ", not an integer of 8, 16 or 32 bits");
  if (!is_float(n.in(1).dtype())) return n.invalid("its scale is " + to_string(n.in(1).spec));
  WEFT_TRY(const DType dtype, float_dtype_attr(n, "output_dtype", n.in(1).dtype()));
  WEFT_TRY(Item y, centred(n));
  WEFT_TRY(y, n.cast(y, dtype));
  WEFT_TRY(Item scale, spread(n, n.in(1), x.shape()));
  WEFT_TRY(scale, n.cast(scale, dtype));
  return n.give(n.emit(OpKind::Mul, {y, scale}));
}

// The scale with which x, and zero, fill the range of a byte.
Status lower_dynamic_quantize(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const Item zero = n.like(x, 0);
  Ints axes;
  for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  WEFT_TRY(Item high, n.reduce(OpKind::ReduceMax, x, axes, false));
  WEFT_TRY(Item low, n.reduce(OpKind::ReduceMin, x, axes, false));
  WEFT_TRY(high, n.emit(OpKind::Max, {high, zero}));
  WEFT_TRY(low, n.emit(OpKind::Min, {low, zero}));
  WEFT_TRY(Item scale, n.emit(OpKind::Sub, {high, low}));
  WEFT_TRY(scale, n.emit(OpKind::Div, {scale, n.like(x, 255)}));
  // Of zeros alone: any scale will do but 0.
  WEFT_TRY(const Item nothing, n.emit(OpKind::Equal, {scale, zero}));
  WEFT_TRY(scale, n.emit(OpKind::Where, {nothing, n.like(x, 1), scale}));
  WEFT_TRY(Item point, n.emit(OpKind::Div, {low, scale}));
  WEFT_TRY(point, n.emit(OpKind::Neg, {point}));
  WEFT_TRY(point, n.emit(OpKind::Clip, {point}, {{Attr::Min, 0.0}, {Attr::Max, 255.0}}));
  WEFT_TRY(point, n.emit(OpKind::Round, {point}));
  WEFT_TRY(Item y, n.emit(OpKind::Div, {x, scale}));
  WEFT_TRY(y, n.emit(OpKind::Round, {y}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, point}));
  WEFT_TRY(y, saturated(n, y, DType::U8));
  WEFT_TRY(point, n.cast(point, DType::U8));
  n.out(0, std::move(y));
  if (n.output_count() > 1) n.out(1, std::move(scale));
  if (n.output_count() > 2) n.out(2, std::move(point));
  return {};
}

// ---- products of integers ----

// A factor of a product: which operands are its values and their zero point.
struct Factor {
  size_t values, zero;
};

// The largest magnitude of a value less its zero point.
double reach(NodeContext& n, const Factor& factor) {
  const Range range = *range_of(n.in(factor.values).dtype());
  if (!n.has(factor.zero)) return std::max(-range.low, range.high);
  const Item& zero = n.in(factor.zero);
  if (!zero.known) return range.high - range.low;
  double most = 0;
  for (const double z : to_doubles(*zero.known)) most = std::max({most, z - range.low, range.high - z});
  return most;
}

Status check_bytes(NodeContext& n, const Factor& factor) {
  const Item& x = n.in(factor.values);
  if (x.dtype() != DType::U8 && x.dtype() != DType::I8)
    return n.unsupported("operand " + std::to_string(factor.values) + " is " + to_string(x.spec) +
                         ", not integers of 8 bits");
  if (n.has(factor.zero) && n.in(factor.zero).dtype() != x.dtype())
    return n.invalid("the zero point " + to_string(n.in(factor.zero).spec) + " has another type than " +
                     to_string(x.spec));
  return {};
}

// Whether float32 holds every sum of `terms` products exactly.
bool float_is_exact(NodeContext& n, const Factor& a, const Factor& b, int64_t terms) {
  return reach(n, a) * reach(n, b) * static_cast<double>(terms) <= 0x1p24;
}

// A list along dim `dim` of `rank`, or one number for all, in a shape that broadcasts.
Result<Item> along(NodeContext& n, const Item& parameter, int64_t rank, int64_t dim) {
  if (parameter.spec.element_count() == 1 && parameter.rank() <= 1) return n.reshape(parameter, {});
  if (parameter.rank() != 1) return parameter;
  Shape shape(static_cast<size_t>(rank - dim), 1);
  shape[0] = parameter.shape()[0];
  return n.reshape(parameter, shape);
}

// Values less their zero points, which count along `dim`, as floats.
Result<Item> centred_floats(NodeContext& n, const Factor& factor, int64_t dim, DType dtype) {
  const Item& values = n.in(factor.values);
  WEFT_TRY(Item x, n.cast(values.as_float ? *values.as_float : values, dtype));
  if (!n.has(factor.zero) || all_zero(n.in(factor.zero))) return x;
  WEFT_TRY(Item zero, along(n, n.in(factor.zero), values.rank(), dim));
  WEFT_TRY(zero, n.cast(zero, dtype));
  WEFT_TRY(Item y, n.emit(OpKind::Sub, {x, zero}));
  if (y.shape() != x.shape())
    return n.invalid("the zero point " + to_string(n.in(factor.zero).shape()) + " does not go with " +
                     to_string(x.shape()));
  return y;
}

// A factor's zero point as the table's integer ops want it: absent, a scalar or a list.
Result<Item> zero_operand(NodeContext& n, const Factor& factor) {
  if (!n.has(factor.zero)) return Item{};
  const Item& zero = n.in(factor.zero);
  return zero.spec.element_count() == 1 ? n.reshape(zero, {}) : Result<Item>(zero);
}

// In I32. A zero point for each row of each matrix is beyond IntegerMatMul: then products of floats serve.
Result<Item> integer_matmul(NodeContext& n, const Factor& a, const Factor& b) {
  WEFT_TRY_STATUS(check_bytes(n, a));
  WEFT_TRY_STATUS(check_bytes(n, b));
  const Item &left = n.in(a.values), &right = n.in(b.values);
  if (left.rank() < 2 || right.rank() < 2) return n.unsupported("an operand that is no matrix");
  WEFT_TRY(const Item zero_a, zero_operand(n, a));
  WEFT_TRY(const Item zero_b, zero_operand(n, b));
  if (zero_a.rank() <= 1 && zero_b.rank() <= 1)
    return n.emit(OpKind::IntegerMatMul, {left, right, zero_a, zero_b});
  const DType dtype = float_is_exact(n, a, b, left.shape().back()) ? DType::F32 : DType::F64;
  WEFT_TRY(const Item x, centred_floats(n, a, left.rank() - 2, dtype));
  WEFT_TRY(const Item w, centred_floats(n, b, right.rank() - 1, dtype));
  WEFT_TRY(const Item y, n.emit(OpKind::MatMul, {x, w}));
  return n.cast(y, DType::I32);
}

// In I32. Groups of few channels are no matrix products worth the name: a convolution of floats is faster
// there.
Result<Item> integer_conv(NodeContext& n, const Factor& a, const Factor& b) {
  constexpr int64_t kFewTerms = 32;
  WEFT_TRY_STATUS(check_bytes(n, a));
  WEFT_TRY_STATUS(check_bytes(n, b));
  const Item &image = n.in(a.values), &weight = n.in(b.values);
  if (image.rank() < 3 || image.rank() != weight.rank())
    return n.invalid("x " + to_string(image.spec) + " and w " + to_string(weight.spec) +
                     " do not go together");
  if (image.rank() > 5) return n.unsupported("more than three spatial dims");
  WEFT_TRY(const Windows windows, read_windows(n, {image.shape().begin() + 2, image.shape().end()},
                                               {weight.shape().begin() + 2, weight.shape().end()}));
  const int64_t groups = n.int_attr("group", 1);
  const Attributes attributes{{Attr::Strides, windows.strides},
                              {Attr::Dilations, windows.dilations},
                              {Attr::Pads, windows.pads},
                              {Attr::Groups, groups}};
  int64_t terms = 1;
  for (size_t d = 1; d < weight.shape().size(); ++d) terms *= weight.shape()[d];
  if (groups > 1 && terms < kFewTerms && float_is_exact(n, a, b, terms)) {
    WEFT_TRY(const Item x, centred_floats(n, a, 1, DType::F32));
    WEFT_TRY(const Item w, centred_floats(n, b, 0, DType::F32));
    WEFT_TRY(const Item y, n.emit(OpKind::Conv, {x, w}, attributes));
    return n.cast(y, DType::I32);
  }
  WEFT_TRY(const Item zero_a, zero_operand(n, a));
  WEFT_TRY(const Item zero_b, zero_operand(n, b));
  return n.emit(OpKind::IntegerConv, {image, weight, zero_a, zero_b}, attributes);
}

Status lower_matmul_integer(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  return n.give(integer_matmul(n, {0, 2}, {1, 3}));
}
Status lower_conv_integer(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  return n.give(integer_conv(n, {0, 2}, {1, 3}));
}

// A sum of products times both scales, in the result's scale and around its zero point. In float32, as other
// runtimes do it.
Result<Item> requantised(NodeContext& n, const Item& sum, const Item& scale_a, const Item& scale_b,
                         size_t scale, size_t zero) {
  for (const size_t operand : {scale, zero})
    if (n.in(operand).spec.element_count() != 1)
      return n.unsupported("a scale or zero point a channel of its result");
  WEFT_TRY(Item factor, n.emit(OpKind::Mul, {scale_a, scale_b}));
  WEFT_TRY(Item divisor, n.reshape(n.in(scale), {}));
  WEFT_TRY(divisor, n.cast(divisor, factor.dtype()));
  WEFT_TRY(factor, n.emit(OpKind::Div, {factor, divisor}));
  WEFT_TRY(factor, n.cast(factor, DType::F32));
  WEFT_TRY(Item y, n.cast(sum, DType::F32));
  WEFT_TRY(y, n.emit(OpKind::Mul, {y, factor}));
  WEFT_TRY(y, n.emit(OpKind::Round, {y}));
  WEFT_TRY(Item point, n.reshape(n.in(zero), {}));
  WEFT_TRY(point, n.cast(point, DType::F32));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, point}));
  if (y.shape() != sum.shape())
    return n.invalid("its scales do not go with its result " + to_string(sum.shape()));
  return saturated(n, y, n.in(zero).dtype());
}

Status lower_qlinear_matmul(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(8));
  WEFT_TRY(const Item sum, integer_matmul(n, {0, 2}, {3, 5}));
  WEFT_TRY(const Item scale_a, along(n, n.in(1), sum.rank(), sum.rank() - 2));
  WEFT_TRY(const Item scale_b, along(n, n.in(4), sum.rank(), sum.rank() - 1));
  return n.give(requantised(n, sum, scale_a, scale_b, 6, 7));
}

Status lower_qlinear_conv(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(8));
  WEFT_TRY(Item sum, integer_conv(n, {0, 2}, {3, 5}));
  if (n.has(8)) {
    WEFT_TRY(Item bias, along(n, n.in(8), sum.rank(), 1));
    WEFT_TRY(sum, n.emit(OpKind::Add, {sum, bias}));
  }
  WEFT_TRY(const Item scale_a, along(n, n.in(1), sum.rank(), 1));
  WEFT_TRY(const Item scale_b, along(n, n.in(4), sum.rank(), 1));
  return n.give(requantised(n, sum, scale_a, scale_b, 6, 7));
}

constexpr LowerRow kQuantisationRows[] = {
    {"QuantizeLinear", lower_quantize, operands(0)},
    {"DequantizeLinear", lower_dequantize, operands(0)},
    {"DynamicQuantizeLinear", lower_dynamic_quantize, kNoOperand},
    {"MatMulInteger", lower_matmul_integer, kNoOperand},
    {"ConvInteger", lower_conv_integer, kNoOperand},
    {"QLinearMatMul", lower_qlinear_matmul, kNoOperand},
    {"QLinearConv", lower_qlinear_conv, kNoOperand},
};

}  // namespace

std::span<const LowerRow> quantisation_lowerings() { return kQuantisationRows; }

}  // namespace weft::onnx
