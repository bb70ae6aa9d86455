// Normalisation by the batch's statistics, by running statistics, and by a sample's own.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

Status need_epsilon(const ShapeContext& c) {
  const double epsilon = c.attributes.get_double(Attr::Epsilon);
  if (!(epsilon >= 0 && epsilon <= 1))
    return refuse("attribute epsilon is " + std::to_string(epsilon) + ", want [0,1]");
  return {};
}

// ---- batch ----

// Operands `from` .. `to`-1 are of shape [C], C the channels of operand `x`.
Status need_channels(const ShapeContext& c, size_t x, size_t from, size_t to) {
  WEFT_TRY_STATUS(need_float(c, x));
  if (c.in(x).rank() < 2) return refuse_operand(c, x, "[N, C, ...]");
  for (size_t i = from; i < to; ++i) WEFT_TRY_STATUS(need_spec(c, i, c.in(x).dtype, {c.in(x).shape[1]}));
  return need_epsilon(c);
}

Specs infer_batch_norm(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(need_channels(c, 0, 1, 3));
  if (c.in(0).element_count() == 0) return refuse("an empty batch has no statistics");
  const TensorSpec statistic{c.in(0).dtype, {c.in(0).shape[1]}};
  return std::vector<TensorSpec>{c.in(0), statistic, statistic};
}
Specs infer_batch_norm_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 5));
  WEFT_TRY_STATUS(need_channels(c, 1, 2, 5));
  WEFT_TRY_STATUS(need_spec(c, 0, c.in(1).dtype, c.in(1).shape));
  if (c.in(1).element_count() == 0) return refuse("an empty batch has no statistics");
  return std::vector<TensorSpec>{c.in(1), c.in(2), c.in(2)};
}
Specs infer_batch_norm_inference(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 5));
  WEFT_TRY_STATUS(need_channels(c, 0, 1, 5));
  return std::vector<TensorSpec>{c.in(0)};
}

void batch_norm_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;  // the statistics only feed the running ones
  const auto grads =
      c.builder().add_all(OpKind::BatchNormGrad, {c.cotangent(0), c.in(0), c.in(1), c.out(1), c.out(2)},
                          {{Attr::Epsilon, c.attributes().get_double(Attr::Epsilon)}});
  for (size_t i = 0; i < 3; ++i) c.set(i, grads[i]);
}

void batch_norm_inference_vjp(VjpContext& c) {
  const Expr x = in(c, 0), g = cotangent(c);
  Shape channel(spec_of(x).shape.size(), 1);
  channel[1] = spec_of(x).shape[1];
  Ints others{0};
  for (int64_t d = 2; d < spec_of(x).rank(); ++d) others.push_back(d);
  const auto over_channels = [&](Expr term) {
    return apply(OpKind::ReduceSum, term, {{Attr::Axes, others}, {Attr::KeepDims, int64_t{0}}});
  };
  const Expr variance = in(c, 4) + c.attributes().get_double(Attr::Epsilon);
  const Expr rstd = apply(OpKind::Reciprocal, apply(OpKind::Sqrt, variance));
  give(c, 0, g * reshape(in(c, 1) * rstd, channel));
  give(c, 1, over_channels(g * ((x - reshape(in(c, 3), channel)) * reshape(rstd, channel))));
  give(c, 2, over_channels(g));
}

// ---- layer ----

struct LayerShapes {
  Shape normalised;  // x.shape[axis:]
  Shape statistic;   // x.shape with the normalised dims 1
};
Result<LayerShapes> layer_shapes(const ShapeContext& c, size_t x) {
  WEFT_TRY_STATUS(need_float(c, x));
  WEFT_TRY(const size_t axis, axis_of(c, c.in(x).rank()));
  LayerShapes shapes{{}, c.in(x).shape};
  for (size_t d = axis; d < shapes.statistic.size(); ++d) {
    shapes.normalised.push_back(shapes.statistic[d]);
    shapes.statistic[d] = 1;
  }
  return shapes;
}

Specs infer_layer_norm(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_epsilon(c));
  WEFT_TRY(const LayerShapes shapes, layer_shapes(c, 0));
  const DType dtype = c.in(0).dtype;
  WEFT_TRY_STATUS(need_spec(c, 1, dtype, shapes.normalised));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, shapes.normalised));
  const TensorSpec statistic{dtype, shapes.statistic};
  return std::vector<TensorSpec>{c.in(0), statistic, statistic};
}

Specs infer_layer_norm_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  if (!c.has(3) || !c.has(4)) return refuse("mean or rstd is missing");
  WEFT_TRY(const LayerShapes shapes, layer_shapes(c, 1));
  const DType dtype = c.in(1).dtype;
  WEFT_TRY_STATUS(need_spec(c, 0, dtype, c.in(1).shape));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, shapes.normalised));
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, shapes.statistic));
  WEFT_TRY_STATUS(need_spec(c, 4, dtype, shapes.statistic));
  const TensorSpec parameter{dtype, shapes.normalised};
  return std::vector<TensorSpec>{c.in(1), parameter, parameter};
}

void layer_norm_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;
  const ValueId scale = c.has_in(1) ? c.in(1) : ValueId{};
  const auto grads =
      c.builder().add_all(OpKind::LayerNormGrad, {c.cotangent(0), c.in(0), scale, c.out(1), c.out(2)},
                          {{Attr::Axis, c.attributes().get_int(Attr::Axis)}});
  for (size_t i = 0; i < 3; ++i)
    if (c.has_in(i)) c.set(i, grads[i]);
}

// ---- layouts ----

void batch_norm_layout(LayoutContext& c) {
  if (!c.fits(c.in(0)) || !c.is_blocked(0)) return;
  c.block_in(0);
  c.block_out();
}
void batch_norm_grad_layout(LayoutContext& c) {
  if (!c.fits(c.in(1)) || !c.is_blocked(1)) return;
  c.block_in(0);
  c.block_in(1);
  c.block_out();
}

// ---- rows ----

OpRow row(OpKind kind, int inputs_min, int inputs_max, Specs (*infer)(const ShapeContext&),
          void (*vjp)(VjpContext&), void (*layout)(LayoutContext&) = nullptr) {
  return {.kind = kind,
          .family = Family::Normalisation,
          .inputs_min = inputs_min,
          .inputs_max = inputs_max,
          .differentiability = vjp ? Differentiability::Differentiable : Differentiability::Refused,
          .infer = infer,
          .vjp = vjp,
          .flops = flops_an_output_element<4>,
          .layout = layout,
          .about = {}};
}
void add(OpTable& table, OpRow entry, std::string_view about) {
  entry.about = about;
  table.add(entry);
}

}  // namespace

void add_normalisation_ops(OpTable& table) {
  add(table, row(OpKind::BatchNorm, 3, 3, infer_batch_norm, batch_norm_vjp, batch_norm_layout),
      "x[N,C,..], scale[C], bias[C] -> y, mean[C], variance[C] (population); epsilon; no cotangent through "
      "the "
      "statistics");
  add(table, row(OpKind::BatchNormGrad, 5, 5, infer_batch_norm_grad, nullptr, batch_norm_grad_layout),
      "dy, x, scale, mean, variance -> dx, dscale, dbias; epsilon");
  add(table,
      row(OpKind::BatchNormInference, 5, 5, infer_batch_norm_inference, batch_norm_inference_vjp,
          batch_norm_layout),
      "x, scale, bias, mean, variance -> y; epsilon; no cotangent to mean and variance");
  add(table, row(OpKind::LayerNorm, 1, 3, infer_layer_norm, layer_norm_vjp),
      "x, scale?, bias? (shape x.shape[axis:]) -> y, mean, rstd (normalised dims 1); axis: first normalised "
      "dim; "
      "epsilon");
  add(table, row(OpKind::LayerNormGrad, 2, 5, infer_layer_norm_grad, nullptr),
      "dy, x, scale?, mean, rstd -> dx, dscale, dbias; axis");
}

}  // namespace weft::dag
