// Ops whose operand says, in integers, where elements come from or go to: gathering and scattering.
#include <algorithm>

#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

// ---- shape rules ----

Shape gathered_shape(const Shape& data, size_t axis, const Shape& indices) {
  Shape shape(data.begin(), data.begin() + static_cast<std::ptrdiff_t>(axis));
  shape.insert(shape.end(), indices.begin(), indices.end());
  shape.insert(shape.end(), data.begin() + static_cast<std::ptrdiff_t>(axis) + 1, data.end());
  return shape;
}

Specs infer_gather(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_index(c, 1));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  return one(c.in(0).dtype, gathered_shape(c.in(0).shape, axis, c.in(1).shape));
}

Specs infer_gather_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_index(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const size_t axis, axis_of(c, spec.rank()));
  WEFT_TRY_STATUS(need_spec(c, 0, spec.dtype, gathered_shape(spec.shape, axis, c.in(1).shape)));
  return std::vector<TensorSpec>{std::move(spec)};
}

Status need_elements_of(const Shape& data, const Shape& indices, size_t axis) {
  if (indices.size() != data.size()) return refuse("data and indices differ in rank");
  for (size_t d = 0; d < data.size(); ++d)
    if (d != axis && indices[d] > data[d])
      return refuse("indices are larger than data in dim " + std::to_string(d));
  return {};
}

Specs infer_gather_elements(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_index(c, 1));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  WEFT_TRY_STATUS(need_elements_of(c.in(0).shape, c.in(1).shape, axis));
  return one(c.in(0).dtype, c.in(1).shape);
}

Specs infer_cache_write(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  WEFT_TRY_STATUS(need_index(c, 2));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  if (c.in(2).rank() != 1) return refuse_operand(c, 2, "rank 1");
  Shape slices = c.in(0).shape;
  slices[axis] = c.in(2).shape[0];
  WEFT_TRY_STATUS(need_spec(c, 1, c.in(0).dtype, slices));
  return one(c.in(0).dtype, c.in(0).shape);
}

Specs infer_gather_elements_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_index(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const size_t axis, axis_of(c, spec.rank()));
  WEFT_TRY_STATUS(need_elements_of(spec.shape, c.in(1).shape, axis));
  WEFT_TRY_STATUS(need_spec(c, 0, spec.dtype, c.in(1).shape));
  return std::vector<TensorSpec>{std::move(spec)};
}

Specs infer_scatter_elements(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(need_index(c, 1));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 2));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  WEFT_TRY_STATUS(need_elements_of(c.in(0).shape, c.in(1).shape, axis));
  WEFT_TRY_STATUS(need_spec(c, 2, c.in(0).dtype, c.in(1).shape));
  const std::string& reduction = c.attributes.get_string(Attr::Reduction);
  if (reduction == "none") return std::vector<TensorSpec>{c.in(0)};
  if (reduction != "add" && reduction != "mul" && reduction != "min" && reduction != "max")
    return refuse("attribute reduction is '" + reduction + "', want none, add, mul, min or max");
  WEFT_TRY_STATUS(need_numeric(c, 0));
  return std::vector<TensorSpec>{c.in(0)};
}

// ---- vjps ----

// The adjoint `kind` at the same places, with the same attributes and the operand's shape.
void give_adjoint(VjpContext& c, OpKind kind) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Shape, c.spec(c.in(0)).shape);
  give(c, 0, apply(kind, cotangent(c), in(c, 1), std::move(attributes)));
}

void gather_grad_vjp(VjpContext& c, OpKind kind) {
  give(c, 0, apply(kind, cotangent(c), in(c, 1), {{Attr::Axis, c.attributes().get_int(Attr::Axis)}}));
}

// ---- vjp of ScatterElements ----

// The op on other data and updates of the same places, by another rule.
Expr scattered(VjpContext& c, Expr data, Expr updates, const char* reduction) {
  return {&c, c.add(OpKind::ScatterElements, {data.id, c.in(1), updates.id},
                    {{Attr::Axis, c.attributes().get_int(Attr::Axis)}, {Attr::Reduction, reduction}})};
}
Expr gathered(VjpContext& c, Expr data) {
  return apply(OpKind::GatherElements, data, in(c, 1), {{Attr::Axis, c.attributes().get_int(Attr::Axis)}});
}
// The shape by value: a spec of the graph moves when an op is appended.
// NOLINTNEXTLINE(performance-unnecessary-value-param)
Expr filled(VjpContext& c, DType dtype, double value, Shape shape) {
  return expand(Expr{&c, c.builder().scalar(dtype, value)}, shape);
}
// Where updates reach data at all.
Expr inside(VjpContext& c) {
  const auto size =
      static_cast<double>(c.spec(c.in(0)).shape[static_cast<size_t>(c.attributes().get_int(Attr::Axis))]);
  const Expr indices = in(c, 1);
  return apply(OpKind::And, apply(OpKind::GreaterEqual, indices, number(indices, -size)),
               apply(OpKind::Less, indices, number(indices, size)));
}
// 0, 1, ..., count-1, made of constants that are small: those travel with the graph.
Expr numbers_to(VjpContext& c, int64_t count) {
  constexpr int64_t kLine = 1024;
  const int64_t size = std::min(count, kLine);
  Tensor line({DType::I64, {size}});
  for (int64_t i = 0; i < size; ++i) line.mutable_as<int64_t>()[static_cast<size_t>(i)] = i;
  const Expr places{&c, c.builder().constant(std::move(line))};
  if (count <= kLine) return places;
  const int64_t lines = (count - 1) / kLine + 1;
  const Expr starts = reshape(numbers_to(c, lines), {lines, 1}) * static_cast<double>(kLine);
  return apply(OpKind::Slice, reshape(starts + places, {lines * kLine}),
               {{Attr::Starts, Ints{0}}, {Attr::Sizes, Ints{count}}, {Attr::Steps, Ints{1}}});
}
// Of each update, whether no later one overwrote it: numbers them from 1 on and looks who is left. Where
// nobody can be, GatherElements of integers gives 0.
Expr left_over(VjpContext& c) {
  const Shape shape = c.spec(c.in(1)).shape;
  const Expr numbers = reshape(numbers_to(c, c.spec(c.in(1)).element_count()), shape) + 1.0;
  const Expr none = filled(c, DType::I64, 0, c.spec(c.in(0)).shape);
  return equal(gathered(c, scattered(c, none, numbers, "none")), numbers);
}

void scatter_none_vjp(VjpContext& c) {
  const Expr g = cotangent(c), zero = number(g, 0);
  give(c, 0, scattered(c, g, expand(zero, c.spec(c.in(2)).shape), "none"));
  if (c.wants(2)) give(c, 2, where(left_over(c), gathered(c, g), zero));
}
void scatter_add_vjp(VjpContext& c) {
  give(c, 0, cotangent(c));
  give(c, 2, where(inside(c), gathered(c, cotangent(c)), number(cotangent(c), 0)));
}
// Each factor's slope is the product of the others: zeros are counted apart, as ReduceProd does.
void scatter_mul_vjp(VjpContext& c) {
  const Expr g = cotangent(c), data = in(c, 0), updates = in(c, 2), zero = number(g, 0), unit = number(g, 1);
  const DType dtype = spec_of(data).dtype;
  const Shape shape = c.spec(c.in(0)).shape;
  give(c, 0, g * scattered(c, filled(c, dtype, 1, shape), updates, "mul"));
  const Expr is_zero = equal(updates, 0.0);
  const Expr factors = where(is_zero, unit, updates), zeros = cast(is_zero, dtype);
  const Expr product = scattered(c, where(equal(data, 0.0), unit, data), factors, "mul");
  const Expr count = scattered(c, cast(equal(data, 0.0), dtype), zeros, "add");
  const Expr alone = equal(gathered(c, count) - zeros, 0.0);  // out of range: NaN, which equals nothing
  give(c, 2, where(alone, gathered(c, g * product) / factors, zero));
}
// Those that equal the result share its cotangent, as ReduceMax has it.
void scatter_extremum_vjp(VjpContext& c) {
  const Expr g = cotangent(c), y = out(c), zero = number(g, 0);
  const DType dtype = spec_of(y).dtype;
  const Expr data_hits = equal(in(c, 0), y), update_hits = equal(in(c, 2), gathered(c, y));
  const Expr hits = scattered(c, cast(data_hits, dtype), cast(update_hits, dtype), "add");
  const Expr share = g / hits;
  give(c, 0, where(data_hits, share, zero));
  give(c, 2, where(update_hits, gathered(c, share), zero));
}
void scatter_vjp(VjpContext& c) {
  const std::string& reduction = c.attributes().get_string(Attr::Reduction);
  if (reduction == "none") return scatter_none_vjp(c);
  if (reduction == "add") return scatter_add_vjp(c);
  return reduction == "mul" ? scatter_mul_vjp(c) : scatter_extremum_vjp(c);
}

// ---- rows ----

OpRow row(OpKind kind, int inputs, Specs (*infer)(const ShapeContext&), void (*vjp)(VjpContext&),
          std::string_view about) {
  return {.kind = kind,
          .family = Family::Shape,
          .inputs_min = inputs,
          .inputs_max = inputs,
          .differentiability = Differentiability::Differentiable,
          .infer = infer,
          .vjp = vjp,
          .flops = no_flops,
          .about = about};
}
// Of an op whose operand 1 names places along axis of operand 0.
OpRow addressing(OpRow made, bool reads_part) {
  made.index = {.operand = 1, .from_end = true};
  made.reads_part = reads_part;
  return made;
}

}  // namespace

void add_index_ops(OpTable& table) {
  using K = OpKind;
  using C = VjpContext&;
  const OpRow gather = row(
      K::Gather, 2, infer_gather, [](C c) { give_adjoint(c, K::GatherGrad); },
      "data, indices I32/I64 -> slices of data along axis; shape data[:axis] + indices + data[axis+1:]; a "
      "negative index counts from the end; out of range gives NaN (floats) or 0");
  const OpRow elements = row(
      K::GatherElements, 2, infer_gather_elements, [](C c) { give_adjoint(c, K::GatherElementsGrad); },
      "data, indices I32/I64 of equal rank -> element by element, the index replaces the coordinate of axis; "
      "out of range as Gather");
  const OpRow scatter = row(
      K::ScatterElements, 3, infer_scatter_elements, scatter_vjp,
      "data, indices I32/I64, updates (shape of indices) -> data with each update where its index takes the "
      "place of the coordinate of axis; reduction: none (the last of equal places stays), add, mul, min, "
      "max; a negative index counts from the end; out of range is ignored");
  table.add(addressing(gather, /*reads_part=*/true));
  table.add(addressing(elements, /*reads_part=*/true));
  table.add(addressing(scatter, /*reads_part=*/false));
  OpRow cache_write = row(
      K::CacheWrite, 3, infer_cache_write, nullptr,
      "cache, update, positions I32/I64[n] -> cache with slice i of update in place of its slice "
      "positions[i] "
      "along axis; a position that is negative or out of range is left out; the bytes are the cache's own "
      "where nobody else reads them");
  cache_write.differentiability = Differentiability::Zero;
  table.add(cache_write);
  table.add(row(
      K::GatherGrad, 2, infer_gather_grad, [](C c) { gather_grad_vjp(c, K::Gather); },
      "dy, indices -> zeros of shape with dy's slices added along axis, in index order; out of range is "
      "ignored"));
  table.add(row(
      K::GatherElementsGrad, 2, infer_gather_elements_grad,
      [](C c) { gather_grad_vjp(c, K::GatherElements); },
      "dy, indices -> zeros of shape with dy's elements added, in index order; out of range is ignored"));
}

}  // namespace weft::dag
