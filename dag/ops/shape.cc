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

// ---- layouts ----

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

// ---- rows ----

OpRow row(OpKind kind, int inputs_max, Specs (*infer)(const ShapeContext&), void (*vjp)(VjpContext&),
          std::string_view about) {
  return {.kind = kind,
          .family = Family::Shape,
          .inputs_max = inputs_max,
          .differentiability = Differentiability::Differentiable,
          .infer = infer,
          .vjp = vjp,
          .flops = no_flops,
          .about = about};
}

void add_views(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  OpRow reshapes = row(
      K::Reshape, 1, infer_reshape, [](C c) { give(c, 0, reshape(cotangent(c), c.spec(c.in(0)).shape)); },
      "x -> the same elements in order; shape: exact dims");
  reshapes.view = reshapes.keeps_values = true;
  OpRow transposes = row(K::Transpose, 1, infer_transpose, transpose_vjp,
                         "x -> dims reordered; perm: dim i is x's dim perm[i]");
  transposes.keeps_values = true;
  OpRow expands = row(
      K::Expand, 1, infer_expand, [](C c) { give(c, 0, cotangent(c)); }, "x -> broadcast to exactly shape");
  expands.keeps_values = true;
  expands.layout = expand_layout;
  t.add(reshapes);
  t.add(transposes);
  t.add(expands);
  t.add(row(
      K::Reorder, 1, infer_reorder, [](C c) { give(c, 0, cotangent(c)); },
      "x -> the same values; layout: how the result lies in memory"));
}

void add_cuts(OpTable& t) {
  using K = OpKind;
  using C = VjpContext&;
  OpRow slices = row(
      K::Slice, 1, infer_slice, [](C c) { give_adjoint(c, K::SliceGrad); },
      "x -> sizes[d] elements of each dim d, element i at starts[d] + i*steps[d]; steps may be negative");
  slices.reads_part = slices.keeps_values = true;
  slices.layout = slice_layout;
  OpRow slice_grads = row(K::SliceGrad, 1, infer_slice_grad, slice_grad_vjp,
                          "dy -> zeros of shape with dy's elements at starts[d] + i*steps[d]");
  slice_grads.layout = slice_layout;
  OpRow concats =
      row(K::Concat, kAnyNumber, infer_concat, concat_vjp, "a, b, ... -> one after the other along axis");
  concats.layout = concat_layout;
  t.add(slices);
  t.add(slice_grads);
  t.add(concats);
  t.add(row(
      K::Pad, 1, infer_pad, [](C c) { give_adjoint(c, K::PadGrad); },
      "x -> padded; pads: begins then ends for every dim, negative crops; mode: constant (value), reflect, "
      "edge"));
  t.add(row(K::PadGrad, 1, infer_pad_grad, pad_grad_vjp,
            "dy -> cotangent of Pad's operand; pads, mode as Pad; shape: the operand's"));
}

}  // namespace

void add_shape_ops(OpTable& table) {
  add_views(table);
  add_cuts(table);
}

}  // namespace weft::dag
