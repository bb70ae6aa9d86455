// Reductions over axes, and the running sum.
#include <algorithm>

#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

Shape reduced_shape(const Shape& x, const Ints& axes, bool keep_dims) {
  Shape shape;
  for (size_t d = 0; d < x.size(); ++d) {
    const bool reduced = std::find(axes.begin(), axes.end(), static_cast<int64_t>(d)) != axes.end();
    if (!reduced)
      shape.push_back(x[d]);
    else if (keep_dims)
      shape.push_back(1);
  }
  return shape;
}

// Elements that one element of the result is made of.
int64_t reduced_count(const Shape& x, const Ints& axes) {
  int64_t count = 1;
  for (const int64_t axis : axes) count *= x[static_cast<size_t>(axis)];
  return count;
}

Specs infer_reduce(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  const Ints& axes = c.attributes.get_ints(Attr::Axes);
  if (axes.size() > c.in(0).shape.size()) return refuse("attribute axes has more entries than x has dims");
  WEFT_TRY_STATUS(need_ints(c, Attr::Axes, axes.size(), 0, c.in(0).rank() - 1));
  for (size_t i = 1; i < axes.size(); ++i)
    if (axes[i - 1] >= axes[i]) return refuse("attribute axes is not sorted, or names a dim twice");
  WEFT_TRY(const int64_t keep_dims, int_in(c, Attr::KeepDims, 0, 1));
  return one(c.in(0).dtype, reduced_shape(c.in(0).shape, axes, keep_dims != 0));
}

// For reductions that have no value over nothing.
Specs infer_reduce_some(const ShapeContext& c) {
  WEFT_TRY(Specs::value_type specs, infer_reduce(c));
  for (const int64_t axis : c.attributes.get_ints(Attr::Axes))
    if (c.in(0).shape[static_cast<size_t>(axis)] == 0) return refuse("reduces an empty dim");
  return specs;
}

Specs infer_arg(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  WEFT_TRY(const int64_t keep_dims, int_in(c, Attr::KeepDims, 0, 1));
  if (c.in(0).shape[axis] == 0) return refuse("reduces an empty dim");
  return one(DType::I64, reduced_shape(c.in(0).shape, {static_cast<int64_t>(axis)}, keep_dims != 0));
}

Specs infer_cumsum(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY_STATUS(axis_of(c, c.in(0).rank()));
  WEFT_TRY_STATUS(int_in(c, Attr::Exclusive, 0, 1));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  return std::vector<TensorSpec>{c.in(0)};
}

Specs infer_top_k(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_numeric(c, 0));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  WEFT_TRY(const int64_t count, int_in(c, Attr::Count, 0, c.in(0).shape[axis]));
  WEFT_TRY_STATUS(int_in(c, Attr::Largest, 0, 1));
  WEFT_TRY_STATUS(int_in(c, Attr::Sorted, 0, 1));
  Shape shape = c.in(0).shape;
  shape[axis] = count;
  return std::vector<TensorSpec>{{c.in(0).dtype, shape}, {DType::I64, shape}};
}

// ---- vjps ----

// x's shape with the reduced dims of size one: results in this shape broadcast against x.
Shape kept_shape(VjpContext& c) {
  return reduced_shape(c.spec(c.in(0)).shape, c.attributes().get_ints(Attr::Axes), true);
}
Expr reduce(Expr x, OpKind kind, const Ints& axes) {
  return apply(kind, x, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{1}}});
}

void sum_vjp(VjpContext& c) {
  const Shape shape = c.spec(c.in(0)).shape;
  give(c, 0, expand(reshape(cotangent(c), kept_shape(c)), shape));
}

void mean_vjp(VjpContext& c) {
  const Shape shape = c.spec(c.in(0)).shape;
  const auto count =
      static_cast<double>(std::max<int64_t>(1, reduced_count(shape, c.attributes().get_ints(Attr::Axes))));
  give(c, 0, expand(reshape(cotangent(c), kept_shape(c)) * (1.0 / count), shape));
}

void extremum_vjp(VjpContext& c) {
  const Expr x = in(c, 0), g = reshape(cotangent(c), kept_shape(c)), y = reshape(out(c), kept_shape(c));
  const Expr hit = cast(equal(x, y), spec_of(x).dtype);
  give(c, 0, hit * (g / reduce(hit, OpKind::ReduceSum, c.attributes().get_ints(Attr::Axes))));
}

// The slope is the product of the others: p / x where no other is zero (with zeros counted apart), else 0.
void prod_vjp(VjpContext& c) {
  const Ints axes = c.attributes().get_ints(Attr::Axes);
  const Expr x = in(c, 0), g = reshape(cotangent(c), kept_shape(c));
  const Expr is_zero = equal(x, 0.0);
  const Expr zeros = cast(is_zero, spec_of(x).dtype);
  const Expr factors = where(is_zero, number(x, 1), x);
  const Expr product = reduce(factors, OpKind::ReduceProd, axes);
  const Expr other_zeros = reduce(zeros, OpKind::ReduceSum, axes) - zeros;
  give(c, 0, g * where(equal(other_zeros, 0.0), product / factors, number(x, 0)));
}

void cumsum_vjp(VjpContext& c) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Reverse, 1 - attributes.get_int(Attr::Reverse));
  give(c, 0, apply(OpKind::CumSum, cotangent(c), std::move(attributes)));
}

void top_k_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;
  give(c, 0,
       apply(OpKind::GatherElementsGrad, cotangent(c), out(c, 1),
             {{Attr::Axis, c.attributes().get_int(Attr::Axis)}, {Attr::Shape, c.spec(c.in(0)).shape}}));
}

// Over space, or over space and samples, the result has one element a channel, which is the same bytes in
// either layout.
void over_space_layout(LayoutContext& c) {
  const Ints& axes = c.attributes().get_ints(Attr::Axes);
  if (c.is_blocked(0) && (axes == Ints{2, 3} || axes == Ints{0, 2, 3})) c.block_in(0);
}

// ---- rows ----

void add(OpTable& table, OpKind kind, Specs (*infer)(const ShapeContext&), void (*vjp)(VjpContext&),
         std::string_view about, void (*layout)(LayoutContext&) = nullptr) {
  table.add({.kind = kind,
             .family = Family::Reduction,
             .differentiability = vjp ? Differentiability::Differentiable : Differentiability::Zero,
             .infer = infer,
             .vjp = vjp,
             .flops = flops_an_input_element<1>,
             .layout = layout,
             .about = about});
}

}  // namespace

void add_reduction_ops(OpTable& table) {
  add(table, OpKind::ReduceSum, infer_reduce, sum_vjp,
      "x -> sum over axes (sorted); keepdims: reduced dims stay as 1", over_space_layout);
  add(table, OpKind::ReduceMean, infer_reduce_some, mean_vjp, "x -> mean over axes; keepdims",
      over_space_layout);
  add(table, OpKind::ReduceMax, infer_reduce_some, extremum_vjp,
      "x -> largest over axes; keepdims; NaN wins; ties share the cotangent");
  add(table, OpKind::ReduceMin, infer_reduce_some, extremum_vjp,
      "x -> smallest over axes; keepdims; NaN wins; ties share the cotangent");
  add(table, OpKind::ReduceProd, infer_reduce, prod_vjp, "x -> product over axes; keepdims");
  add(table, OpKind::ArgMax, infer_arg, nullptr,
      "x -> I64 place of the largest along axis, the first of ties; keepdims");
  add(table, OpKind::ArgMin, infer_arg, nullptr,
      "x -> I64 place of the smallest along axis, the first of ties; keepdims");
  add(table, OpKind::CumSum, infer_cumsum, cumsum_vjp,
      "x -> running sum along axis; exclusive: without the element itself; reverse: from the end");
  add(table, OpKind::TopK, infer_top_k, top_k_vjp,
      "x -> count largest (or smallest) along axis, I64 places; from the most extreme on, whatever sorted "
      "says; the first of equals first; a NaN counts as larger than every number");
}

}  // namespace weft::dag
