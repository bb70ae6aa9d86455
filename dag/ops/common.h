// What the families share: checks that shape rules repeat, and a notation in which vjps read as formulas.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "dag/op_table.h"

namespace weft::dag::ops {

using Specs = Result<std::vector<TensorSpec>>;
inline constexpr int kAnyNumber = 1 << 20;  // operands of a variadic op

inline tl::unexpected<Error> refuse(std::string message) {
  return fail(ErrorCode::InvalidArgument, std::move(message));
}

// ---- shape rules ----

// Operands 0 .. count-1 are there.
inline Status need_operands(const ShapeContext& context, size_t count) {
  for (size_t i = 0; i < count; ++i)
    if (!context.has(i)) return refuse("operand " + std::to_string(i) + " is missing");
  return {};
}

inline bool is_numeric(DType dtype) { return is_float(dtype) || is_integer(dtype); }

inline tl::unexpected<Error> refuse_operand(const ShapeContext& context, size_t i, const std::string& want) {
  return refuse("operand " + std::to_string(i) + " is " + to_string(context.in(i)) + ", want " + want);
}
inline Status need_float(const ShapeContext& context, size_t i) {
  if (!is_float(context.in(i).dtype)) return refuse_operand(context, i, "a float dtype");
  return {};
}
inline Status need_numeric(const ShapeContext& context, size_t i) {
  if (!is_numeric(context.in(i).dtype)) return refuse_operand(context, i, "a float or integer dtype");
  return {};
}
inline Status need_bool(const ShapeContext& context, size_t i) {
  if (context.in(i).dtype != DType::Bool) return refuse_operand(context, i, "dtype bool");
  return {};
}
inline Status need_index(const ShapeContext& context, size_t i) {
  const DType dtype = context.in(i).dtype;
  if (dtype != DType::I32 && dtype != DType::I64) return refuse_operand(context, i, "dtype i32 or i64");
  return {};
}
inline Status need_same_dtype(const ShapeContext& context, size_t i, size_t j) {
  if (context.in(i).dtype != context.in(j).dtype)
    return refuse_operand(
        context, j,
        "dtype " + std::string(to_string(context.in(i).dtype)) + " as operand " + std::to_string(i));
  return {};
}
// Operand i has dtype and shape as given; absent operands pass.
inline Status need_spec(const ShapeContext& context, size_t i, DType dtype, const Shape& shape) {
  if (context.has(i) && context.in(i) != TensorSpec{dtype, shape})
    return refuse_operand(context, i, to_string(TensorSpec{dtype, shape}));
  return {};
}

inline Status need_byte(const ShapeContext& context, size_t i) {
  const DType dtype = context.in(i).dtype;
  if (dtype != DType::I8 && dtype != DType::U8) return refuse_operand(context, i, "dtype i8 or u8");
  return {};
}
// Operand `zero`, where it is there, is one number for all of operand `of`, or `count` of them.
inline Status need_zero_point(const ShapeContext& context, size_t zero, size_t of, int64_t count) {
  if (!context.has(zero)) return {};
  if (!context.in(zero).shape.empty()) return need_spec(context, zero, context.in(of).dtype, {count});
  return need_same_dtype(context, of, zero);
}

// The ints of an attribute: exactly `count` of them, each in [low, high]. The bounds that rules hand in are
// at most kElementCountMax in magnitude, so that sums and differences of a few such numbers cannot overflow.
inline Status need_ints(const ShapeContext& context, Attr name, size_t count, int64_t low, int64_t high) {
  const Ints& ints = context.attributes.get_ints(name);
  if (ints.size() != count)
    return refuse("attribute " + std::string(to_string(name)) + " has " + std::to_string(ints.size()) +
                  " entries, want " + std::to_string(count));
  for (const int64_t value : ints)
    if (value < low || value > high)
      return refuse("attribute " + std::string(to_string(name)) + " has " + std::to_string(value) +
                    ", want a value in [" + std::to_string(low) + "," + std::to_string(high) + "]");
  return {};
}
inline Result<int64_t> int_in(const ShapeContext& context, Attr name, int64_t low, int64_t high,
                              int64_t otherwise = 0) {
  const int64_t value = context.attributes.get_int(name, otherwise);
  if (value < low || value > high)
    return refuse("attribute " + std::string(to_string(name)) + " is " + std::to_string(value) +
                  ", want a value in [" + std::to_string(low) + "," + std::to_string(high) + "]");
  return value;
}
// Attribute Axis as an index of a dim of a rank-`rank` tensor.
inline Result<size_t> axis_of(const ShapeContext& context, int64_t rank) {
  if (rank == 0) return refuse("a scalar has no axis");
  WEFT_TRY(const int64_t axis, int_in(context, Attr::Axis, 0, rank - 1));
  return static_cast<size_t>(axis);
}

// `dtype` and `shape` as a spec, when the shape is within bounds.
inline Result<TensorSpec> checked(DType dtype, Shape shape) {
  WEFT_TRY_STATUS(checked_element_count(shape));
  return TensorSpec{dtype, std::move(shape)};
}
inline Specs one(DType dtype, Shape shape) {
  WEFT_TRY(TensorSpec spec, checked(dtype, std::move(shape)));
  return std::vector<TensorSpec>{std::move(spec)};
}
// Attribute Shape, checked, as a tensor of dtype `dtype`.
inline Result<TensorSpec> spec_of_attribute(const ShapeContext& context, DType dtype) {
  return checked(dtype, context.attributes.get_ints(Attr::Shape));
}

// ---- costs ----

inline FlopCount saturating_product(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (const int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return {std::numeric_limits<int64_t>::max()};
  return {product};
}
inline FlopCount no_flops(const ShapeContext&, std::span<const TensorSpec>) { return {0}; }
template <int kTimes>
FlopCount flops_an_input_element(const ShapeContext& context, std::span<const TensorSpec>) {
  return saturating_product({kTimes, context.in(0).element_count()});
}
template <int kTimes>
FlopCount flops_an_output_element(const ShapeContext&, std::span<const TensorSpec> outputs) {
  return saturating_product({kTimes, outputs[0].element_count()});
}

// ---- vjps ----
// Expr is a value of the graph under construction; each operator appends an op. A number becomes a scalar of
// the dtype of the value beside it. Terms that nobody wants are pruned afterwards, so formulas need not ask.

struct Expr {
  VjpContext* context;
  ValueId id;
};
inline Expr in(VjpContext& context, size_t i) { return {&context, context.in(i)}; }
inline Expr out(VjpContext& context, size_t i = 0) { return {&context, context.out(i)}; }
inline Expr cotangent(VjpContext& context) { return {&context, context.cotangent(0)}; }

inline TensorSpec spec_of(Expr a) { return a.context->spec(a.id); }
inline Expr apply(OpKind kind, Expr a, Attributes attributes = {}) {
  return {a.context, a.context->add(kind, {a.id}, std::move(attributes))};
}
inline Expr apply(OpKind kind, Expr a, Expr b, Attributes attributes = {}) {
  return {a.context, a.context->add(kind, {a.id, b.id}, std::move(attributes))};
}
inline Expr number(Expr like, double value) {
  return {like.context, like.context->builder().scalar(spec_of(like).dtype, value)};
}
inline Expr operator-(Expr a) { return apply(OpKind::Neg, a); }
inline Expr operator+(Expr a, Expr b) { return apply(OpKind::Add, a, b); }
inline Expr operator-(Expr a, Expr b) { return apply(OpKind::Sub, a, b); }
inline Expr operator*(Expr a, Expr b) { return apply(OpKind::Mul, a, b); }
inline Expr operator/(Expr a, Expr b) { return apply(OpKind::Div, a, b); }
inline Expr operator+(Expr a, double b) { return a + number(a, b); }
inline Expr operator-(Expr a, double b) { return a - number(a, b); }
inline Expr operator-(double a, Expr b) { return number(b, a) - b; }
inline Expr operator*(Expr a, double b) { return a * number(a, b); }
inline Expr equal(Expr a, Expr b) { return apply(OpKind::Equal, a, b); }
inline Expr equal(Expr a, double b) { return equal(a, number(a, b)); }
inline Expr where(Expr condition, Expr a, Expr b) {
  return {a.context, a.context->add(OpKind::Where, {condition.id, a.id, b.id})};
}
inline Expr cast(Expr a, DType dtype) {
  if (spec_of(a).dtype == dtype) return a;
  return apply(OpKind::Cast, a, {{Attr::DType, static_cast<int64_t>(dtype)}});
}
inline Expr reshape(Expr a, const Shape& shape) {
  if (spec_of(a).shape == shape) return a;
  return apply(OpKind::Reshape, a, {{Attr::Shape, shape}});
}
inline Expr expand(Expr a, const Shape& shape) {
  if (spec_of(a).shape == shape) return a;
  return apply(OpKind::Expand, a, {{Attr::Shape, shape}});
}
// `term` flows to operand i, summed over the dims that broadcasting stretched.
inline void give(VjpContext& context, size_t i, Expr term) {
  context.set(i, context.sum_to(term.id, context.in(i)));
}

}  // namespace weft::dag::ops
