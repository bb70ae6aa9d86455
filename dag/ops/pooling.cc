// Pooling over sliding windows: x[N,C,s..], one to three spatial dims.
#include "dag/ops/windows.h"

namespace weft::dag {
namespace {

using namespace ops;

Result<Shape> pooled_shape(const ShapeContext& c, const Shape& x) {
  const auto spatial = static_cast<int64_t>(x.size()) - 2;
  if (spatial < 1 || spatial > kSpatialDimsMax)
    return refuse("x " + to_string(x) + " has not 1 to 3 spatial dims");
  const auto dims = static_cast<size_t>(spatial);
  constexpr int64_t kMost = int64_t{1} << 20;
  WEFT_TRY_STATUS(need_ints(c, Attr::Kernel, dims, 1, kMost));
  WEFT_TRY_STATUS(need_window_attributes(c, dims));
  WEFT_TRY(const int64_t ceil, int_in(c, Attr::CeilMode, 0, 1));
  const Ints &kernel = c.attributes.get_ints(Attr::Kernel), &pads = c.attributes.get_ints(Attr::Pads);
  const Ints& dilations = c.attributes.get_ints(Attr::Dilations);
  Shape y{x[0], x[1]};
  for (size_t d = 0; d < dims; ++d) {
    const int64_t extent = (dilations.empty() ? 1 : dilations[d]) * (kernel[d] - 1) + 1;
    if (pads[d] >= extent || pads[dims + d] >= extent)
      return refuse("padding must be smaller than the window");
    WEFT_TRY(const int64_t count, window_count(c.attributes, d, x[d + 2], kernel[d], ceil != 0));
    y.push_back(count);
  }
  return y;
}

Specs infer_max_pool(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY(const Shape y, pooled_shape(c, c.in(0).shape));
  WEFT_TRY(TensorSpec values, checked(c.in(0).dtype, y));
  int64_t plane = 1;
  for (size_t d = 2; d < c.in(0).shape.size(); ++d) {
    if (c.in(0).shape[d] == 0) return refuse("an empty plane has no maximum");
    plane *= c.in(0).shape[d];
    if (plane > std::numeric_limits<int32_t>::max()) return refuse("the plane is too large for I32 indices");
  }
  return std::vector<TensorSpec>{std::move(values), {DType::I32, y}};
}

Specs infer_max_pool_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_spec(c, 1, DType::I32, c.in(0).shape));
  WEFT_TRY_STATUS(need_spatial(c, 0));
  WEFT_TRY(TensorSpec x, spec_of_attribute(c, c.in(0).dtype));
  const Shape& y = c.in(0).shape;
  if (x.shape.size() != y.size() || x.shape[0] != y[0] || x.shape[1] != y[1])
    return refuse("attribute shape " + to_string(x.shape) + " does not go with operand 0");
  return std::vector<TensorSpec>{std::move(x)};
}

Specs infer_average_pool(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(int_in(c, Attr::CountIncludePad, 0, 1));
  WEFT_TRY(Shape y, pooled_shape(c, c.in(0).shape));
  return one(c.in(0).dtype, std::move(y));
}
Specs infer_average_pool_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(int_in(c, Attr::CountIncludePad, 0, 1));
  WEFT_TRY(TensorSpec x, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const Shape y, pooled_shape(c, x.shape));
  WEFT_TRY_STATUS(need_spec(c, 0, x.dtype, y));
  return std::vector<TensorSpec>{std::move(x)};
}

FlopCount window_flops(const TensorSpec& y, const Attributes& attributes) {
  int64_t taps = 1;
  for (const int64_t size : attributes.get_ints(Attr::Kernel)) taps *= size;
  return saturating_product({y.element_count(), taps});
}
FlopCount pool_flops(const ShapeContext& c, std::span<const TensorSpec> outputs) {
  return window_flops(outputs[0], c.attributes);
}

void max_pool_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;
  const Shape shape = c.spec(c.in(0)).shape;
  give(c, 0, apply(OpKind::MaxPoolGrad, cotangent(c), out(c, 1), {{Attr::Shape, shape}}));
}
void average_pool_vjp(VjpContext& c) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Shape, c.spec(c.in(0)).shape);
  give(c, 0, apply(OpKind::AveragePoolGrad, cotangent(c), std::move(attributes)));
}
void average_pool_grad_vjp(VjpContext& c) {
  Attributes attributes;
  for (const auto& [name, value] : c.attributes().entries())
    if (name != Attr::Shape) attributes.set(name, value);
  give(c, 0, apply(OpKind::AveragePool, cotangent(c), std::move(attributes)));
}

// ---- layouts ----

void pool_layout(LayoutContext& c) {
  if (!c.is_blocked(0) || c.out().rank() != 4) return;
  c.block_in(0);
  c.block_out();
}
void max_pool_layout(LayoutContext& c) {
  if (!c.is_blocked(0) || c.out().rank() != 4) return;
  c.block_in(0);
  c.block_out(0);
  c.block_out(1);
}
void max_pool_grad_layout(LayoutContext& c) {
  if (!c.is_blocked(1)) return;
  c.block_in(0);
  c.block_in(1);
  c.block_out();
}
void average_pool_grad_layout(LayoutContext& c) {
  if (!c.is_blocked(0) || !c.fits(c.out())) return;
  c.block_in(0);
  c.block_out();
}

}  // namespace

void add_pooling_ops(OpTable& table) {
  table.add(
      {.kind = OpKind::MaxPool,
       .family = Family::Pooling,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_max_pool,
       .vjp = max_pool_vjp,
       .flops = pool_flops,
       .layout = max_pool_layout,
       .about =
           "x -> y, I32 indices (flat, into x's spatial plane; the first maximum wins; -1 where a window "
           "holds only padding); kernel, strides, dilations, pads, ceil_mode"});
  table.add({.kind = OpKind::MaxPoolGrad,
             .family = Family::Pooling,
             .inputs_min = 2,
             .inputs_max = 2,
             .differentiability = Differentiability::Refused,
             .infer = infer_max_pool_grad,
             .layout = max_pool_grad_layout,
             .about = "dy, indices -> dx: each dy added at its index; an index outside the plane is ignored; "
                      "shape: x's"});
  table.add(
      {.kind = OpKind::AveragePool,
       .family = Family::Pooling,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_average_pool,
       .vjp = average_pool_vjp,
       .flops = pool_flops,
       .layout = pool_layout,
       .about =
           "x -> y; kernel, strides, dilations?, pads, ceil_mode; count_include_pad: padding counts in the "
           "divisor, but never what lies beyond it; a window over nothing gives 0"});
  table.add({.kind = OpKind::AveragePoolGrad,
             .family = Family::Pooling,
             .differentiability = Differentiability::Differentiable,
             .infer = infer_average_pool_grad,
             .vjp = average_pool_grad_vjp,
             .flops = [](const ShapeContext& c,
                         std::span<const TensorSpec>) { return window_flops(c.in(0), c.attributes); },
             .layout = average_pool_grad_layout,
             .about = "dy -> dx; attributes of AveragePool; shape: x's"});
}

}  // namespace weft::dag
