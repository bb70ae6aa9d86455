// Convolution and its two adjoints: x[N,C,s..], w[M,C/G,k..], y[N,M,o..]. Each of the three is linear in both
// of its operands, and each one's vjp is made of the other two.
#include "dag/ops/windows.h"

namespace weft::dag {
namespace {

using namespace ops;

// The shape of y over x and w, everything checked. REQUIRES: both shapes are within bounds.
Result<Shape> convolved_shape(const ShapeContext& c, const Shape& x, const Shape& w) {
  const auto spatial = static_cast<int64_t>(x.size()) - 2;
  if (spatial < 1 || spatial > kSpatialDimsMax)
    return refuse("x " + to_string(x) + " has not 1 to 3 spatial dims");
  if (w.size() != x.size()) return refuse("w " + to_string(w) + " has another rank than x " + to_string(x));
  WEFT_TRY_STATUS(need_window_attributes(c, static_cast<size_t>(spatial)));
  WEFT_TRY(const int64_t groups, int_in(c, Attr::Groups, 1, kElementCountMax, 1));
  if (w[1] > kElementCountMax / groups || x[1] != w[1] * groups || w[0] % groups != 0)
    return refuse("channels do not match: x " + to_string(x) + ", w " + to_string(w) + ", groups " +
                  std::to_string(groups));
  Shape y{x[0], w[0]};
  for (size_t d = 0; d + 2 < x.size(); ++d) {
    WEFT_TRY(const int64_t count, window_count(c.attributes, d, x[d + 2], w[d + 2], false));
    y.push_back(count);
  }
  return y;
}

Specs infer_conv(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  WEFT_TRY(Shape y, convolved_shape(c, c.in(0).shape, c.in(1).shape));
  WEFT_TRY_STATUS(need_spec(c, 2, c.in(0).dtype, {y[1]}));
  return one(c.in(0).dtype, std::move(y));
}

Specs infer_integer_conv(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  for (const size_t i : {0u, 1u}) WEFT_TRY_STATUS(need_byte(c, i));
  WEFT_TRY(Shape y, convolved_shape(c, c.in(0).shape, c.in(1).shape));
  if (c.has(2)) WEFT_TRY_STATUS(need_spec(c, 2, c.in(0).dtype, {}));
  WEFT_TRY_STATUS(need_zero_point(c, 3, 1, y[1]));
  return one(DType::I32, std::move(y));
}

Specs infer_conv_grad_input(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(need_same_dtype(c, 0, 1));
  WEFT_TRY(TensorSpec x, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const Shape y, convolved_shape(c, x.shape, c.in(1).shape));
  WEFT_TRY_STATUS(need_spec(c, 0, x.dtype, y));
  return std::vector<TensorSpec>{std::move(x)};
}

Specs infer_conv_grad_weight(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY(TensorSpec w, spec_of_attribute(c, c.in(0).dtype));
  WEFT_TRY(const Shape y, convolved_shape(c, c.in(0).shape, w.shape));
  WEFT_TRY_STATUS(need_spec(c, 1, w.dtype, y));
  return std::vector<TensorSpec>{std::move(w)};
}

// Two for each product of an element of y and a tap of one output channel's kernel.
FlopCount conv_flops(const TensorSpec& y, const Shape& w) {
  int64_t taps = 1;
  for (size_t d = 1; d < w.size(); ++d) taps *= w[d];
  return saturating_product({2, y.element_count(), taps});
}

Attributes with_shape(VjpContext& c, size_t of) {
  Attributes attributes = c.attributes();
  attributes.set(Attr::Shape, c.spec(c.in(of)).shape);
  return attributes;
}
Attributes without_shape(const Attributes& attributes) {
  Attributes rest;
  for (const auto& [name, value] : attributes.entries())
    if (name != Attr::Shape) rest.set(name, value);
  return rest;
}

void conv_vjp(VjpContext& c) {
  const Expr g = cotangent(c);
  give(c, 0, apply(OpKind::ConvGradInput, g, in(c, 1), with_shape(c, 0)));
  give(c, 1, apply(OpKind::ConvGradWeight, in(c, 0), g, with_shape(c, 1)));
  if (!c.has_in(2)) return;
  Ints axes{0};
  for (int64_t d = 2; d < spec_of(g).rank(); ++d) axes.push_back(d);
  give(c, 2, apply(OpKind::ReduceSum, g, {{Attr::Axes, axes}, {Attr::KeepDims, int64_t{0}}}));
}
void conv_grad_input_vjp(VjpContext& c) {  // operands dy, w; the cotangent has x's shape
  const Expr g = cotangent(c);
  give(c, 0, apply(OpKind::Conv, g, in(c, 1), without_shape(c.attributes())));
  give(c, 1, apply(OpKind::ConvGradWeight, g, in(c, 0), with_shape(c, 1)));
}
void conv_grad_weight_vjp(VjpContext& c) {  // operands x, dy; the cotangent has w's shape
  const Expr g = cotangent(c);
  give(c, 0, apply(OpKind::ConvGradInput, in(c, 1), g, with_shape(c, 0)));
  give(c, 1, apply(OpKind::Conv, in(c, 0), g, without_shape(c.attributes())));
}

// ---- layouts ----

// Runs blocked when its output channels fill whole blocks, group by group. Its input may be plain: the first
// layer of an image model has 3 channels.
bool runs_blocked(const LayoutContext& c, const TensorSpec& x, const Shape& w, const TensorSpec& y) {
  const int64_t block = c.block(), groups = c.attributes().get_int(Attr::Groups, 1);
  if (x.dtype != DType::F32 || x.rank() != 4 || y.shape[1] % block != 0) return false;
  if (y.shape[2] * y.shape[3] <= 1 || x.shape[2] * x.shape[3] <= 1) return false;
  if (groups == 1) return x.shape[1] % block == 0 || x.shape[1] <= 4;
  const bool depthwise = w[1] == 1 && w[0] == groups;
  if (depthwise) return x.shape[1] % block == 0;
  return w[1] % block == 0 && (w[0] / groups) % block == 0;
}
void conv_layout(LayoutContext& c) {
  if (!runs_blocked(c, c.in(0), c.in(1).shape, c.out())) return;
  if (c.in(0).shape[1] % c.block() == 0) c.block_in(0);
  c.block_out();
}
void conv_grad_input_layout(LayoutContext& c) {
  if (!runs_blocked(c, c.out(), c.in(1).shape, c.in(0))) return;
  c.block_in(0);
  if (c.out().shape[1] % c.block() == 0) c.block_out();
}
void conv_grad_weight_layout(LayoutContext& c) {
  if (!runs_blocked(c, c.in(0), c.out().shape, c.in(1))) return;
  if (c.in(0).shape[1] % c.block() == 0) c.block_in(0);
  c.block_in(1);
}

}  // namespace

void add_convolution_ops(OpTable& table) {
  using Outputs = std::span<const TensorSpec>;
  table.add(
      {.kind = OpKind::Conv,
       .family = Family::Convolution,
       .inputs_min = 2,
       .inputs_max = 3,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_conv,
       .vjp = conv_vjp,
       .flops = [](const ShapeContext& c, Outputs outputs) { return conv_flops(outputs[0], c.in(1).shape); },
       .work = Work::Convolution,
       .layout = conv_layout,
       .about =
           "x[N,C,s..], w[M,C/groups,k..], bias[M]? -> y[N,M,o..]; strides, dilations, pads (begins then "
           "ends), groups; 1 to 3 spatial dims"});
  table.add(
      {.kind = OpKind::ConvGradInput,
       .family = Family::Convolution,
       .inputs_min = 2,
       .inputs_max = 2,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_conv_grad_input,
       .vjp = conv_grad_input_vjp,
       .flops = [](const ShapeContext& c, Outputs) { return conv_flops(c.in(0), c.in(1).shape); },
       .work = Work::Convolution,
       .layout = conv_grad_input_layout,
       .about = "dy, w -> cotangent of Conv's x (a transposed convolution); attributes of Conv; shape: x's"});
  table.add(
      {.kind = OpKind::ConvGradWeight,
       .family = Family::Convolution,
       .inputs_min = 2,
       .inputs_max = 2,
       .differentiability = Differentiability::Differentiable,
       .infer = infer_conv_grad_weight,
       .vjp = conv_grad_weight_vjp,
       .flops = [](const ShapeContext& c, Outputs outputs) { return conv_flops(c.in(1), outputs[0].shape); },
       .work = Work::Convolution,
       .layout = conv_grad_weight_layout,
       .about = "x, dy -> cotangent of Conv's w; attributes of Conv; shape: w's"});
  table.add(
      {.kind = OpKind::IntegerConv,
       .family = Family::Convolution,
       .inputs_min = 2,
       .inputs_max = 4,
       .infer = infer_integer_conv,
       .flops = [](const ShapeContext& c, Outputs outputs) { return conv_flops(outputs[0], c.in(1).shape); },
       .work = Work::Convolution,
       .about =
           "x, w (i8 or u8), x's zero point []?, w's [] or [M]? -> i32 y: Conv of what the values are beyond "
           "their zero points; attributes of Conv; sums wrap around"});
}

}  // namespace weft::dag
