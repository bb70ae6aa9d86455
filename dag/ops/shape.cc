// Ops that move elements about without computing on them, and their adjoints.
#include <algorithm>

#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

// ---- shape rules ----

Specs infer_reshape(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  if (spec.element_count() != c.in(0).element_count())
    return refuse("shape " + to_string(spec.shape) + " has another element count");
  return std::vector<TensorSpec>{std::move(spec)};
}

Specs infer_transpose(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  const Shape& x = c.in(0).shape;
  WEFT_TRY_STATUS(need_ints(c, Attr::Perm, x.size(), 0, c.in(0).rank() - 1));
  const Ints& perm = c.attributes.get_ints(Attr::Perm);
  std::vector<bool> used(x.size());
  Shape shape;
  for (const int64_t from : perm) {
    if (used[static_cast<size_t>(from)]) return refuse("attribute perm names a dim twice");
    used[static_cast<size_t>(from)] = true;
    shape.push_back(x[static_cast<size_t>(from)]);
  }
  return one(c.in(0).dtype, std::move(shape));
}

Specs infer_expand(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const Shape shape, broadcast_shapes(c.in(0).shape, spec.shape));
  if (shape != spec.shape) return refuse("does not expand to " + to_string(spec.shape));
  return std::vector<TensorSpec>{std::move(spec)};
}

// That `sizes` elements from `starts` by `steps` lie inside `shape`.
Status need_inside(const Shape& shape, const Ints& starts, const Ints& sizes, const Ints& steps) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (sizes[d] < 0) return refuse("a size is negative");
    if (steps[d] == 0) return refuse("a step is zero");
    if (sizes[d] == 0) continue;
    int64_t last = 0;
    if (__builtin_mul_overflow(sizes[d] - 1, steps[d], &last) ||
        __builtin_add_overflow(last, starts[d], &last))
      return refuse("a slice is out of range");
    if (std::min(starts[d], last) < 0 || std::max(starts[d], last) >= shape[d])
      return refuse("dim " + std::to_string(d) + " of " + to_string(shape) + " has no elements " +
                    std::to_string(starts[d]) + " to " + std::to_string(last));
  }
  return {};
}

Specs infer_slice(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  const Shape& x = c.in(0).shape;
  constexpr int64_t kMost = kElementCountMax;
  WEFT_TRY_STATUS(need_ints(c, Attr::Starts, x.size(), 0, kMost));
  WEFT_TRY_STATUS(need_ints(c, Attr::Sizes, x.size(), 0, kMost));
  WEFT_TRY_STATUS(need_ints(c, Attr::Steps, x.size(), -kMost, kMost));
  const Ints& sizes = c.attributes.get_ints(Attr::Sizes);
  WEFT_TRY_STATUS(
      need_inside(x, c.attributes.get_ints(Attr::Starts), sizes, c.attributes.get_ints(Attr::Steps)));
  return one(c.in(0).dtype, sizes);
}

Specs infer_slice_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  const Shape& dy = c.in(0).shape;
  if (spec.shape.size() != dy.size()) return refuse("attribute shape has another rank than the operand");
  constexpr int64_t kMost = kElementCountMax;
  WEFT_TRY_STATUS(need_ints(c, Attr::Starts, dy.size(), 0, kMost));
  WEFT_TRY_STATUS(need_ints(c, Attr::Steps, dy.size(), -kMost, kMost));
  WEFT_TRY_STATUS(
      need_inside(spec.shape, c.attributes.get_ints(Attr::Starts), dy, c.attributes.get_ints(Attr::Steps)));
  return std::vector<TensorSpec>{std::move(spec)};
}

Specs infer_concat(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, c.inputs.size()));
  if (c.inputs.empty()) return refuse("nothing to concatenate");
  WEFT_TRY(const size_t axis, axis_of(c, c.in(0).rank()));
  Shape shape = c.in(0).shape;
  for (size_t i = 1; i < c.inputs.size(); ++i) {
    WEFT_TRY_STATUS(need_same_dtype(c, 0, i));
    Shape other = c.in(i).shape;
    if (other.size() != shape.size()) return refuse_operand(c, i, "the rank of operand 0");
    if (other[axis] > kElementCountMax - shape[axis])
      return fail(ErrorCode::OutOfRange, "the result is too large");
    shape[axis] += other[axis];
    other[axis] = shape[axis];
    if (other != shape)
      return refuse_operand(c, i, "the shape of operand 0 but for dim " + std::to_string(axis));
  }
  return one(c.in(0).dtype, std::move(shape));
}

// The shape of Pad's result over `x`.
Result<Shape> padded_shape(const ShapeContext& c, const Shape& x) {
  WEFT_TRY_STATUS(need_ints(c, Attr::Pads, 2 * x.size(), -kElementCountMax, kElementCountMax));
  const Ints& pads = c.attributes.get_ints(Attr::Pads);
  const std::string& mode = c.attributes.get_string(Attr::Mode);
  if (mode != "constant" && mode != "reflect" && mode != "edge")
    return refuse("attribute mode is '" + mode + "', want constant, reflect or edge");
  Shape shape = x;
  for (size_t d = 0; d < x.size(); ++d) {
    const int64_t before = pads[d], after = pads[x.size() + d];
    const int64_t furthest = std::max(before, after);
    if (mode == "reflect" && furthest > 0 && furthest >= x[d])
      return refuse("dim " + std::to_string(d) + " is too short to reflect " + std::to_string(furthest));
    if (mode == "edge" && furthest > 0 && x[d] == 0) return refuse("an empty dim has no edge");
    if (std::min(before, after) < -x[d])
      return refuse("dim " + std::to_string(d) + " is cropped beyond its size");
    shape[d] += before + after;
    if (shape[d] < 0) return refuse("dim " + std::to_string(d) + " is cropped beyond its size");
  }
  return shape;
}

Specs infer_pad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(Shape shape, padded_shape(c, c.in(0).shape));
  return one(c.in(0).dtype, std::move(shape));
}

Specs infer_pad_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(TensorSpec spec, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const Shape shape, padded_shape(c, spec.shape));
  WEFT_TRY_STATUS(need_spec(c, 0, spec.dtype, shape));
  return std::vector<TensorSpec>{std::move(spec)};
}

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

Specs infer_reorder(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY(const int64_t layout, int_in(c, Attr::Layout, 0, static_cast<int64_t>(Layout::Blocked16)));
  if (static_cast<Layout>(layout) != Layout::Plain) {
    const int64_t block = static_cast<Layout>(layout) == Layout::Blocked8 ? 8 : 16;
    if (c.in(0).rank() < 3 || c.in(0).shape[1] % block != 0)
      return refuse_operand(c, 0, "rank 3 or more and a channel count that is a multiple of the block");
  }
  return std::vector<TensorSpec>{c.in(0)};
}

// ---- vjps ----

// The adjoint `kind` of this op applied to the cotangent, with the same attributes and the operand's shape.
void give_adjoint(VjpContext& c, OpKind kind) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Shape, c.spec(c.in(0)).shape);
  give(c, 0, apply(kind, cotangent(c), std::move(attributes)));
}
void give_adjoint_by_indices(VjpContext& c, OpKind kind) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Shape, c.spec(c.in(0)).shape);
  give(c, 0, apply(kind, cotangent(c), in(c, 1), std::move(attributes)));
}

void transpose_vjp(VjpContext& c) {
  const Ints& perm = c.attributes().get_ints(Attr::Perm);
  Ints inverse(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) inverse[static_cast<size_t>(perm[i])] = static_cast<int64_t>(i);
  give(c, 0, apply(OpKind::Transpose, cotangent(c), {{Attr::Perm, inverse}}));
}

void slice_grad_vjp(VjpContext& c) {
  give(c, 0,
       apply(OpKind::Slice, cotangent(c),
             {{Attr::Starts, c.attributes().get_ints(Attr::Starts)},
              {Attr::Steps, c.attributes().get_ints(Attr::Steps)},
              {Attr::Sizes, c.spec(c.in(0)).shape}}));
}

void concat_vjp(VjpContext& c) {
  const auto axis = static_cast<size_t>(c.attributes().get_int(Attr::Axis));
  const size_t rank = c.spec(c.out()).shape.size();
  Ints starts(rank, 0);
  for (size_t i = 0; i < c.op().inputs.size(); ++i) {
    const Shape sizes = c.spec(c.in(i)).shape;
    give(c, i,
         apply(OpKind::Slice, cotangent(c),
               {{Attr::Starts, starts}, {Attr::Sizes, sizes}, {Attr::Steps, Ints(rank, 1)}}));
    starts[axis] += sizes[axis];
  }
}

void pad_grad_vjp(VjpContext& c) {
  give(c, 0,
       apply(OpKind::Pad, cotangent(c),
             {{Attr::Pads, c.attributes().get_ints(Attr::Pads)},
              {Attr::Mode, c.attributes().get_string(Attr::Mode)},
              {Attr::Value, 0.0}}));
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
Expr filled(VjpContext& c, DType dtype, double value, Shape shape) {
  return expand(Expr{&c, c.builder().scalar(dtype, value)}, std::move(shape));
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

// The way back from a mean over space: blocked as what it is added to.
void expand_layout(LayoutContext& c) {
  if (c.any_blocked() && c.fits(c.out()) && c.in(0).rank() == 4 && c.in(0).shape[2] * c.in(0).shape[3] == 1)
    c.block_out();
}

// Channels are joined block by block where most of them lie blocked already.
void concat_layout(LayoutContext& c) {
  int64_t blocked = 0;
  bool fit = c.attributes().get_int(Attr::Axis) == 1 && c.fits(c.out());
  for (size_t i = 0; i < c.input_count(); ++i) {
    fit = fit && c.fits(c.in(i));
    blocked += c.is_blocked(i) ? c.in(i).shape[1] : 0;
  }
  if (!fit || 2 * blocked < c.out().shape[1]) return;
  for (size_t i = 0; i < c.input_count(); ++i) c.block_in(i);
  c.block_out();
}

// Ranges of channels that begin and end between blocks, and their way back.
void slice_layout(LayoutContext& c) {
  if (!c.is_blocked(0) || !c.fits(c.in(0)) || !c.fits(c.out())) return;
  const Ints &starts = c.attributes().get_ints(Attr::Starts), &steps = c.attributes().get_ints(Attr::Steps);
  for (size_t d = 0; d < starts.size(); ++d)
    if ((d != 1 && c.in(0).shape[d] != c.out().shape[d]) || (!steps.empty() && steps[d] != 1)) return;
  if (starts[1] % c.block() != 0) return;
  c.block_in(0);
  c.block_out();
}

void (*layout_of(OpKind kind))(LayoutContext&) {
  switch (kind) {
    case OpKind::Expand:
      return expand_layout;
    case OpKind::Concat:
      return concat_layout;
    case OpKind::Slice:
    case OpKind::SliceGrad:
      return slice_layout;
    default:
      return nullptr;
  }
}

void add(OpTable& table, OpKind kind, int inputs_min, int inputs_max, Specs (*infer)(const ShapeContext&),
         void (*vjp)(VjpContext&), std::string_view about) {
  using K = OpKind;
  const bool gathers = kind == K::Gather || kind == K::GatherElements;
  const bool indexes = gathers || kind == K::ScatterElements;
  table.add(
      {.kind = kind,
       .family = Family::Shape,
       .inputs_min = inputs_min,
       .inputs_max = inputs_max,
       .differentiability = Differentiability::Differentiable,
       .infer = infer,
       .vjp = vjp,
       .flops = no_flops,
       .view = kind == K::Reshape,
       .reads_part = gathers || kind == K::Slice,
       .keeps_values = kind == K::Reshape || kind == K::Transpose || kind == K::Slice || kind == K::Expand,
       .index = indexes ? IndexRule{.operand = 1, .from_end = true} : IndexRule{},
       .layout = layout_of(kind),
       .about = about});
}

void add_views(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  add(
      t, K::Reshape, 1, 1, infer_reshape,
      [](C c) { give(c, 0, reshape(cotangent(c), Shape(c.spec(c.in(0)).shape))); },
      "x -> the same elements in order; shape: exact dims");
  add(t, K::Transpose, 1, 1, infer_transpose, transpose_vjp,
      "x -> dims reordered; perm: dim i is x's dim perm[i]");
  add(
      t, K::Expand, 1, 1, infer_expand, [](C c) { give(c, 0, cotangent(c)); },
      "x -> broadcast to exactly shape");
  add(
      t, K::Reorder, 1, 1, infer_reorder, [](C c) { give(c, 0, cotangent(c)); },
      "x -> the same values; layout: how the result lies in memory");
}

void add_cuts(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  add(
      t, K::Slice, 1, 1, infer_slice, [](C c) { give_adjoint(c, K::SliceGrad); },
      "x -> sizes[d] elements of each dim d, element i at starts[d] + i*steps[d]; steps may be negative");
  add(t, K::SliceGrad, 1, 1, infer_slice_grad, slice_grad_vjp,
      "dy -> zeros of shape with dy's elements at starts[d] + i*steps[d]");
  add(t, K::Concat, 1, kAnyNumber, infer_concat, concat_vjp, "a, b, ... -> one after the other along axis");
  add(
      t, K::Pad, 1, 1, infer_pad, [](C c) { give_adjoint(c, K::PadGrad); },
      "x -> padded; pads: begins then ends for every dim, negative crops; mode: constant (value), reflect, "
      "edge");
  add(t, K::PadGrad, 1, 1, infer_pad_grad, pad_grad_vjp,
      "dy -> cotangent of Pad's operand; pads, mode as Pad; shape: the operand's");
}

void add_scatters(OpTable& t) {
  add(t, OpKind::ScatterElements, 3, 3, infer_scatter_elements, scatter_vjp,
      "data, indices I32/I64, updates (shape of indices) -> data with each update where its index takes the "
      "place of the coordinate of axis; reduction: none (the last of equal places stays), add, mul, min, "
      "max; "
      "a negative index counts from the end; out of range is ignored");
}

void add_gathers(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  add(
      t, K::Gather, 2, 2, infer_gather, [](C c) { give_adjoint_by_indices(c, K::GatherGrad); },
      "data, indices I32/I64 -> slices of data along axis; shape data[:axis] + indices + data[axis+1:]; a "
      "negative "
      "index counts from the end; out of range gives NaN (floats) or 0");
  add(
      t, K::GatherGrad, 2, 2, infer_gather_grad, [](C c) { gather_grad_vjp(c, K::Gather); },
      "dy, indices -> zeros of shape with dy's slices added along axis, in index order; out of range is "
      "ignored");
  add(
      t, K::GatherElements, 2, 2, infer_gather_elements,
      [](C c) { give_adjoint_by_indices(c, K::GatherElementsGrad); },
      "data, indices I32/I64 of equal rank -> element by element, the index replaces the coordinate of axis; "
      "out of "
      "range as Gather");
  add(
      t, K::GatherElementsGrad, 2, 2, infer_gather_elements_grad,
      [](C c) { gather_grad_vjp(c, K::GatherElements); },
      "dy, indices -> zeros of shape with dy's elements added, in index order; out of range is ignored");
}

}  // namespace

void add_shape_ops(OpTable& table) {
  add_views(table);
  add_cuts(table);
  add_gathers(table);
  add_scatters(table);
}

}  // namespace weft::dag
