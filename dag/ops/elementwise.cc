// Elementwise ops. Binary ops and Where broadcast as numpy does.
#include <cmath>
#include <numbers>

#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;
using Infer = Specs (*)(const ShapeContext&);
using Vjp = void (*)(VjpContext&);

// ---- shape rules ----

Specs infer_float(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  return std::vector<TensorSpec>{c.in(0)};
}
Specs infer_numeric(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  return std::vector<TensorSpec>{c.in(0)};
}
Specs infer_not(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_bool(c, 0));
  return std::vector<TensorSpec>{c.in(0)};
}
Status need_integer(const ShapeContext& c, size_t i) {
  if (!is_integer(c.in(i).dtype)) return refuse_operand(c, i, "an integer dtype");
  return {};
}
Specs infer_bits(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_integer(c, 0));
  return std::vector<TensorSpec>{c.in(0)};
}
Specs infer_float_to_bool(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  return one(DType::Bool, c.in(0).shape);
}
Specs infer_cast(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  if (!c.attributes.has(Attr::DType)) return refuse("attribute dtype is missing");
  WEFT_TRY(const int64_t dtype, int_in(c, Attr::DType, 0, static_cast<int64_t>(DType::Bool)));
  return one(static_cast<DType>(dtype), c.in(0).shape);
}
Specs infer_round_to_half(const ShapeContext& c) {
  WEFT_TRY_STATUS(infer_cast(c));
  const auto dtype = static_cast<DType>(c.attributes.get_int(Attr::DType));
  if (!is_half(dtype))
    return refuse("attribute dtype is " + std::string(to_string(dtype)) + ", want f16 or bf16");
  return infer_float(c);
}
Specs infer_gelu(const ShapeContext& c) {
  WEFT_TRY_STATUS(int_in(c, Attr::Approximate, 0, 1));
  return infer_float(c);
}

Specs broadcast(const ShapeContext& c, size_t i, size_t j, DType dtype) {
  WEFT_TRY(Shape shape, broadcast_shapes(c.in(i).shape, c.in(j).shape));
  return one(dtype, std::move(shape));
}
Specs infer_binary(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  return broadcast(c, 0, 1, c.in(0).dtype);
}
Specs infer_two_bits(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_integer(c, 0));
  return infer_binary(c);
}
Specs infer_shift(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  const DType dtype = c.in(0).dtype;
  if (dtype != DType::U8 && dtype != DType::U16 && dtype != DType::U32 && dtype != DType::U64)
    return refuse_operand(c, 0, "an unsigned integer dtype");
  return infer_binary(c);
}
Specs infer_mod(const ShapeContext& c) {
  WEFT_TRY_STATUS(int_in(c, Attr::Fmod, 0, 1));
  return infer_binary(c);
}
Specs infer_pow(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY_STATUS(need_numeric(c, 1));
  return broadcast(c, 0, 1, c.in(0).dtype);
}
Specs infer_logical(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_bool(c, 0));
  WEFT_TRY_STATUS(need_bool(c, 1));
  return broadcast(c, 0, 1, DType::Bool);
}
Specs infer_equal(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  return broadcast(c, 0, 1, DType::Bool);
}
Specs infer_order(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  return infer_equal(c);
}
Specs infer_where(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(need_bool(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 1, 2));
  WEFT_TRY(const Shape branches, broadcast_shapes(c.in(1).shape, c.in(2).shape));
  WEFT_TRY(Shape shape, broadcast_shapes(c.in(0).shape, branches));
  return one(c.in(1).dtype, std::move(shape));
}
Specs infer_gradient(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_spec(c, 1, c.in(0).dtype, c.in(0).shape));
  return std::vector<TensorSpec>{c.in(0)};
}
Specs infer_gelu_gradient(const ShapeContext& c) {
  WEFT_TRY_STATUS(int_in(c, Attr::Approximate, 0, 1));
  return infer_gradient(c);
}

// ---- vjps that take more than a line ----

void cast_vjp(VjpContext& c) {
  const DType from = c.spec(c.in(0)).dtype;
  if (is_float(from) && is_float(c.spec(c.out()).dtype)) give(c, 0, cast(cotangent(c), from));
}

void clip_vjp(VjpContext& c) {
  const Expr x = in(c, 0), g = cotangent(c), zero = number(g, 0);
  Expr passed = g;
  if (c.attributes().has(Attr::Min)) {
    const Expr low = number(x, c.attributes().get_double(Attr::Min));
    passed = where(apply(OpKind::GreaterEqual, x, low), passed, zero);
  }
  if (c.attributes().has(Attr::Max)) {
    const Expr high = number(x, c.attributes().get_double(Attr::Max));
    passed = where(apply(OpKind::LessEqual, x, high), passed, zero);
  }
  give(c, 0, passed);
}

// x^(e-1) at x = 0, e = 0 and log x at x = 0 are not finite: both are masked where the true slope is zero.
void pow_vjp(VjpContext& c) {
  const Expr x = in(c, 0), g = cotangent(c);
  const Expr e = cast(in(c, 1), spec_of(x).dtype);
  const Expr zero = number(g, 0), unit = number(g, 1);
  give(c, 0, where(equal(e, 0.0), zero, g * (e * apply(OpKind::Pow, x, e - 1.0))));
  const DType exponent_dtype = c.spec(c.in(1)).dtype;
  if (!is_float(exponent_dtype)) return;
  const Expr at_zero = apply(OpKind::And, equal(x, 0.0), apply(OpKind::GreaterEqual, e, zero));
  const Expr slope = out(c) * apply(OpKind::Log, where(at_zero, unit, x));
  give(c, 1, cast(where(at_zero, zero, g * slope), exponent_dtype));
}

// `behind`: the comparison that holds where operand `a` was not chosen. A tie sends half to each side, as in
// PyTorch.
Expr chosen(Expr g, Expr a, Expr b, OpKind behind) {
  const Expr shared = where(equal(a, b), g * 0.5, g);
  return where(apply(behind, a, b), number(g, 0), shared);
}
void max_vjp(VjpContext& c) {
  const Expr a = in(c, 0), b = in(c, 1), g = cotangent(c);
  give(c, 0, chosen(g, a, b, OpKind::Less));
  give(c, 1, chosen(g, b, a, OpKind::Less));
}
void min_vjp(VjpContext& c) {
  const Expr a = in(c, 0), b = in(c, 1), g = cotangent(c);
  give(c, 0, chosen(g, a, b, OpKind::Greater));
  give(c, 1, chosen(g, b, a, OpKind::Greater));
}

// a = q b + y with an integer q that does not change locally.
void mod_vjp(VjpContext& c) {
  const Expr a = in(c, 0), b = in(c, 1), g = cotangent(c);
  give(c, 0, g);
  give(c, 1, -(g * apply(OpKind::Round, (a - out(c)) / b)));
}

void where_vjp(VjpContext& c) {
  const Expr condition = in(c, 0), g = cotangent(c), zero = number(g, 0);
  give(c, 1, where(condition, g, zero));
  give(c, 2, where(condition, zero, g));
}

// Follows a blocked operand when every other operand has the same shape or is small beside it, such as a
// number a channel: that one stays plain and is stretched as it is read.
void follow_blocks(LayoutContext& c) {
  const Shape& shape = c.out().shape;
  bool any = false, all = true;
  for (size_t i = 0; i < c.input_count(); ++i) {
    const bool same = c.in(i).shape == shape;
    any = any || (same && c.is_blocked(i));
    all = all && (same || (!c.is_blocked(i) && 8 * c.in(i).element_count() <= c.out().element_count()));
  }
  if (!any || !all) return;
  for (size_t i = 0; i < c.input_count(); ++i)
    if (c.in(i).shape == shape) c.block_in(i);
  c.block_out();
}

// ---- rows ----

// Functions cost more than an addition: about how many operations a vector loop makes of one, and of those
// that no vector loop has, how many it could make meanwhile. nullptr: one.
using Flops = FlopCount (*)(const ShapeContext&, std::span<const TensorSpec>);
template <int kByErf, int kByTanh>
FlopCount gelu_flops(const ShapeContext& c, std::span<const TensorSpec> outputs) {
  const bool by_tanh = c.attributes.get_int(Attr::Approximate, 0) == 1;
  return saturating_product({by_tanh ? kByTanh : kByErf, outputs[0].element_count()});
}
Flops flops_of(OpKind kind) {
  using K = OpKind;
  switch (kind) {
    case K::Sqrt:
      return flops_an_output_element<2>;
    case K::Exp:
      return flops_an_output_element<10>;
    case K::Sigmoid:
      return flops_an_output_element<15>;
    case K::Log:
      return flops_an_output_element<20>;
    case K::Tanh:
      return flops_an_output_element<27>;
    case K::Erf:
      return flops_an_output_element<35>;
    case K::Gelu:
      return gelu_flops<37, 30>;
    case K::GeluGrad:
      return gelu_flops<55, 40>;
    case K::Softplus:
      return flops_an_output_element<57>;
    case K::Sin:
    case K::Cos:
    case K::Tan:
    case K::Asin:
    case K::Acos:
    case K::Atan:
    case K::Sinh:
    case K::Cosh:
    case K::Asinh:
    case K::Acosh:
    case K::Atanh:
      return flops_an_output_element<130>;
    case K::Pow:
      return flops_an_output_element<220>;
    default:
      return nullptr;
  }
}

OpRow row(OpKind kind, int operands, Infer infer, Differentiability differentiability, Vjp vjp,
          std::string_view about) {
  return {.kind = kind,
          .family = Family::Elementwise,
          .inputs_min = operands,
          .inputs_max = operands,
          .differentiability = differentiability,
          .infer = infer,
          .vjp = vjp,
          .flops = flops_of(kind),
          .fusable = true,
          .layout = follow_blocks,
          .about = about};
}
void smooth(OpTable& table, OpKind kind, int operands, Infer infer, Vjp vjp, std::string_view about) {
  table.add(row(kind, operands, infer, Differentiability::Differentiable, vjp, about));
}
// One that has no vector loop that may stand inside a group.
void alone(OpTable& table, OpKind kind, int operands, Infer infer, Vjp vjp, std::string_view about) {
  OpRow made = row(kind, operands, infer, Differentiability::Differentiable, vjp, about);
  made.fusable = false;
  table.add(made);
}
void flat(OpTable& table, OpKind kind, int operands, Infer infer, std::string_view about) {
  table.add(row(kind, operands, infer, Differentiability::Zero, nullptr, about));
}
void backward_only(OpTable& table, OpKind kind, Infer infer, std::string_view about) {
  table.add(row(kind, 2, infer, Differentiability::Refused, nullptr, about));
}

void add_smooth_unary(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  smooth(
      t, K::Neg, 1, infer_numeric, [](C c) { give(c, 0, -cotangent(c)); }, "x -> -x");
  smooth(
      t, K::Abs, 1, infer_numeric, [](C c) { give(c, 0, cotangent(c) * apply(K::Sign, in(c, 0))); },
      "x -> |x|; slope 0 at 0");
  smooth(
      t, K::Exp, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * out(c)); }, "x -> e^x");
  smooth(
      t, K::Log, 1, infer_float, [](C c) { give(c, 0, cotangent(c) / in(c, 0)); }, "x -> natural logarithm");
  smooth(
      t, K::Sqrt, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * 0.5 / out(c)); }, "x -> square root");
  smooth(
      t, K::Reciprocal, 1, infer_float, [](C c) { give(c, 0, -(cotangent(c) * out(c) * out(c))); },
      "x -> 1/x");
  smooth(
      t, K::Relu, 1, infer_float, [](C c) { give(c, 0, apply(K::ReluGrad, cotangent(c), out(c))); },
      "x -> max(x, 0); slope 0 at 0; NaN stays NaN");
  smooth(
      t, K::Erf, 1, infer_float,
      [](C c) {
        const Expr x = in(c, 0);
        give(c, 0, cotangent(c) * (apply(K::Exp, -(x * x)) * (2.0 / std::sqrt(std::numbers::pi))));
      },
      "x -> 2/sqrt(pi) * integral of e^-t^2 from 0 to x");
  smooth(
      t, K::Gelu, 1, infer_gelu,
      [](C c) { give(c, 0, apply(K::GeluGrad, cotangent(c), in(c, 0), c.attributes())); },
      "x -> x * Phi(x); approximate: 0 by erf, 1 by tanh");
  smooth(
      t, K::Softplus, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * apply(K::Sigmoid, in(c, 0))); },
      "x -> log(1 + e^x), without overflow");
  OpRow casts = row(
      K::Cast, 1, infer_cast, Differentiability::Differentiable, cast_vjp,
      "x -> x as dtype; to integers truncates and saturates, to Bool is non-zero, to halves rounds to even");
  casts.keeps_values = true;
  t.add(casts);
  smooth(
      t, K::RoundThrough, 1, infer_float, [](C c) { give(c, 0, cotangent(c)); },
      "x -> rounded to nearest, halves to even; slope 1: the gradient goes straight through");
  smooth(
      t, K::RoundToHalf, 1, infer_round_to_half, [](C c) { give(c, 0, cotangent(c)); },
      "x -> the nearest number of dtype (f16 or bf16), halves to even, in x's own dtype; slope 1: the "
      "gradient "
      "goes straight through");
  smooth(t, K::Clip, 1, infer_numeric, clip_vjp,
         "x -> min(max(x, min), max); min, max: either may be absent; slope 1 at the ends");
}

void add_trigonometry(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  smooth(
      t, K::Sin, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * apply(K::Cos, in(c, 0))); },
      "x -> sin x");
  smooth(
      t, K::Cos, 1, infer_float, [](C c) { give(c, 0, -(cotangent(c) * apply(K::Sin, in(c, 0)))); },
      "x -> cos x");
  smooth(
      t, K::Tan, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * (out(c) * out(c) + 1.0)); },
      "x -> tan x");
  smooth(
      t, K::Asin, 1, infer_float,
      [](C c) { give(c, 0, cotangent(c) / apply(K::Sqrt, 1.0 - in(c, 0) * in(c, 0))); }, "x -> arcsin x");
  smooth(
      t, K::Acos, 1, infer_float,
      [](C c) { give(c, 0, -(cotangent(c) / apply(K::Sqrt, 1.0 - in(c, 0) * in(c, 0)))); }, "x -> arccos x");
  smooth(
      t, K::Atan, 1, infer_float, [](C c) { give(c, 0, cotangent(c) / (in(c, 0) * in(c, 0) + 1.0)); },
      "x -> arctan x");
  smooth(
      t, K::Sinh, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * apply(K::Cosh, in(c, 0))); },
      "x -> sinh x");
  smooth(
      t, K::Cosh, 1, infer_float, [](C c) { give(c, 0, cotangent(c) * apply(K::Sinh, in(c, 0))); },
      "x -> cosh x");
  smooth(
      t, K::Asinh, 1, infer_float,
      [](C c) { give(c, 0, cotangent(c) / apply(K::Sqrt, in(c, 0) * in(c, 0) + 1.0)); }, "x -> arsinh x");
  smooth(
      t, K::Acosh, 1, infer_float,
      [](C c) { give(c, 0, cotangent(c) / apply(K::Sqrt, in(c, 0) * in(c, 0) - 1.0)); }, "x -> arcosh x");
  smooth(
      t, K::Atanh, 1, infer_float, [](C c) { give(c, 0, cotangent(c) / (1.0 - in(c, 0) * in(c, 0))); },
      "x -> artanh x");
  smooth(
      t, K::Tanh, 1, infer_float, [](C c) { give(c, 0, apply(K::TanhGrad, cotangent(c), out(c))); },
      "x -> tanh x");
  smooth(
      t, K::Sigmoid, 1, infer_float, [](C c) { give(c, 0, apply(K::SigmoidGrad, cotangent(c), out(c))); },
      "x -> 1/(1 + e^-x)");
}

void add_flat_unary(OpTable& t) {
  using K = OpKind;
  flat(t, K::Sign, 1, infer_numeric, "x -> -1, 0 or 1");
  flat(t, K::Floor, 1, infer_float, "x -> rounded down");
  flat(t, K::Ceil, 1, infer_float, "x -> rounded up");
  flat(t, K::Round, 1, infer_float, "x -> rounded to nearest, halves to even");
  flat(t, K::Not, 1, infer_not, "Bool x -> its negation");
  flat(t, K::BitNot, 1, infer_bits, "integer x -> every bit the other way");
  flat(t, K::IsNaN, 1, infer_float_to_bool, "x -> Bool");
  flat(t, K::IsInf, 1, infer_float_to_bool, "x -> Bool: either infinity");
}

void add_binary(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  smooth(
      t, K::Add, 2, infer_binary, [](C c) { give(c, 0, cotangent(c)), give(c, 1, cotangent(c)); },
      "a, b -> a + b");
  smooth(
      t, K::Sub, 2, infer_binary, [](C c) { give(c, 0, cotangent(c)), give(c, 1, -cotangent(c)); },
      "a, b -> a - b");
  smooth(
      t, K::Mul, 2, infer_binary,
      [](C c) { give(c, 0, cotangent(c) * in(c, 1)), give(c, 1, cotangent(c) * in(c, 0)); }, "a, b -> a * b");
  smooth(
      t, K::Div, 2, infer_binary,
      [](C c) {
        const Expr quotient = cotangent(c) / in(c, 1);
        give(c, 0, quotient);
        give(c, 1, -(quotient * out(c)));
      },
      "a, b -> a / b; integers truncate toward zero, x/0 is 0");
  alone(t, K::Pow, 2, infer_pow, pow_vjp, "a, b -> a^b in a's dtype; b may have another dtype");
  smooth(t, K::Min, 2, infer_binary, min_vjp, "a, b -> the smaller; NaN wins; a tie shares the cotangent");
  smooth(t, K::Max, 2, infer_binary, max_vjp, "a, b -> the larger; NaN wins; a tie shares the cotangent");
  alone(t, K::Mod, 2, infer_mod, mod_vjp,
        "a, b -> remainder; fmod: 1 has the sign of a (C), 0 that of b (Python); integer x mod 0 is 0");
  smooth(t, K::Where, 3, infer_where, where_vjp, "Bool condition, a, b -> a where it holds, else b");
  flat(t, K::And, 2, infer_logical, "Bool a, b -> both");
  flat(t, K::Or, 2, infer_logical, "Bool a, b -> either");
  flat(t, K::Xor, 2, infer_logical, "Bool a, b -> exactly one");
  flat(t, K::BitAnd, 2, infer_two_bits, "integers a, b -> the bits that both have");
  flat(t, K::BitOr, 2, infer_two_bits, "integers a, b -> the bits that either has");
  flat(t, K::BitXor, 2, infer_two_bits, "integers a, b -> the bits that exactly one has");
  flat(t, K::ShiftLeft, 2, infer_shift, "unsigned a, b -> a * 2^b, what leaves the width is lost");
  flat(t, K::ShiftRight, 2, infer_shift, "unsigned a, b -> a / 2^b; 0 where b is the width or more");
  flat(t, K::Equal, 2, infer_equal, "a, b -> Bool a == b");
  flat(t, K::Less, 2, infer_order, "a, b -> Bool a < b");
  flat(t, K::LessEqual, 2, infer_order, "a, b -> Bool a <= b");
  flat(t, K::Greater, 2, infer_order, "a, b -> Bool a > b");
  flat(t, K::GreaterEqual, 2, infer_order, "a, b -> Bool a >= b");
}

void add_gradients(OpTable& t) {
  backward_only(t, OpKind::ReluGrad, infer_gradient, "dy, y -> dy where y > 0, else 0");
  backward_only(t, OpKind::TanhGrad, infer_gradient, "dy, y -> dy * (1 - y*y)");
  backward_only(t, OpKind::SigmoidGrad, infer_gradient, "dy, y -> dy * y * (1 - y)");
  backward_only(t, OpKind::GeluGrad, infer_gelu_gradient, "dy, x -> dy * Gelu'(x); approximate as Gelu");
}

}  // namespace

void add_elementwise_ops(OpTable& table) {
  add_smooth_unary(table);
  add_trigonometry(table);
  add_flat_unary(table);
  add_binary(table);
  add_gradients(table);
}

}  // namespace weft::dag
