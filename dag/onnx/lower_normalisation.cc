// Normalisation. BatchNormalization in training mode also says what becomes of its running statistics.
#include <algorithm>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

Result<double> read_epsilon(NodeContext& n, double otherwise) {
  const double epsilon = n.float_attr("epsilon", otherwise);
  if (!(epsilon >= 0)) return n.invalid("epsilon is negative");
  return epsilon;
}

struct BatchNormForm {
  double epsilon = 1e-5;
  double momentum = 0.9;  // the share of the old value: 1 - PyTorch's
  bool trains = false;
};

bool is_held(NodeContext& n, const Item& statistic) {
  return n.state().held_statistics.contains(statistic.initializer);
}

Result<BatchNormForm> read_batch_norm(NodeContext& n) {
  BatchNormForm form;
  WEFT_TRY(form.epsilon, read_epsilon(n, 1e-5));
  form.momentum = n.float_attr("momentum", 0.9);
  if (n.opset() < 9 && n.int_attr("spatial", 1) == 0)
    return n.unsupported("statistics for each activation (spatial = 0)");
  // Before opset 14 training mode shows by the number of outputs.
  const bool marked = n.opset() >= 14  ? n.int_attr("training_mode", 0) != 0
                      : n.opset() >= 7 ? n.output_count() > 1
                                       : n.int_attr("is_test", 0) == 0 && n.output_count() > 1;
  // A layer whose statistics are both held normalises by them, as one in PyTorch's eval() does.
  form.trains = marked && n.options().training && !(is_held(n, n.in(3)) && is_held(n, n.in(4)));
  return form;
}

// share * old + (1 - share) * fresh
Result<Item> blend(NodeContext& n, const Item& old, const Item& fresh, double share) {
  WEFT_TRY(const Item kept, n.emit(OpKind::Mul, {old, n.like(old, share)}));
  WEFT_TRY(const Item added, n.emit(OpKind::Mul, {fresh, n.like(old, 1 - share)}));
  return n.emit(OpKind::Add, {kept, added});
}

// The newest value of a running statistic: the initializer, or what an earlier node made of it in this pass.
Item* running_value(NodeContext& n, const Item& operand) {
  if (operand.initializer.empty() || is_held(n, operand)) return nullptr;
  auto& running = n.state().running;
  for (auto& [name, value] : running)
    if (name == operand.initializer) return &value;
  running.emplace_back(operand.initializer, operand);
  return &running.back().second;
}

Status update_running(NodeContext& n, const Item& operand, const Item& fresh, double share, size_t output) {
  Item* state = running_value(n, operand);
  if (state || n.wants(output)) {
    WEFT_TRY(Item updated, blend(n, state ? *state : operand, fresh, share));
    if (state) *state = updated;
    n.out(output, std::move(updated));
  }
  return {};
}

// `operands`: x, scale and bias in the statistics' type.
Status train_batch_norm(NodeContext& n, const BatchNormForm& form, const Items& operands) {
  const Item& x = operands[0];
  WEFT_TRY(const Items results, n.emit_all(OpKind::BatchNorm, operands, {{Attr::Epsilon, form.epsilon}}));
  WEFT_TRY(Item y, n.cast(results[0], n.in(0).dtype()));
  n.out(0, std::move(y));
  const Item& mean = results[1];
  Item variance = results[2];
  if (!n.options().onnx_running_statistics) {
    // PyTorch keeps the unbiased variance: n / (n - 1) times the population's.
    const int64_t of_channel = x.spec.element_count() / std::max<int64_t>(1, x.shape()[1]);
    const auto count = static_cast<double>(of_channel);
    if (count < 2) return n.invalid("one value a channel has no variance: it needs a larger batch to train");
    WEFT_TRY(variance, n.emit(OpKind::Mul, {variance, n.like(variance, count)}));
    WEFT_TRY(variance, n.emit(OpKind::Div, {variance, n.like(variance, count - 1)}));
  }
  WEFT_TRY_STATUS(update_running(n, n.in(3), mean, form.momentum, 1));
  WEFT_TRY_STATUS(update_running(n, n.in(4), variance, form.momentum, 2));
  // Opset 7 to 13 also return the batch's own statistics.
  if (n.wants(3)) n.out(3, mean);
  if (n.wants(4)) n.out(4, results[2]);
  return {};
}

Status lower_batch_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(5));
  WEFT_TRY(const BatchNormForm form, read_batch_norm(n));
  if (n.in(0).rank() < 2) return n.invalid("x " + to_string(n.in(0).spec) + " has no channels");
  // From opset 15 on x, its scale and bias, and the statistics may be of different types.
  const DType dtype = n.in(3).dtype();
  WEFT_TRY(const Item x, n.cast(n.in(0), dtype));
  WEFT_TRY(const Item scale, n.cast(n.in(1), dtype));
  WEFT_TRY(const Item bias, n.cast(n.in(2), dtype));
  if (form.trains) return train_batch_norm(n, form, {x, scale, bias});
  for (size_t i = 1; i < n.output_count(); ++i)
    if (n.wants(i)) return n.unsupported("its running statistics are read outside of training");
  WEFT_TRY(const Item y, n.emit(OpKind::BatchNormInference, {x, scale, bias, n.in(3), n.in(4)},
                                {{Attr::Epsilon, form.epsilon}}));
  return n.give(n.cast(y, n.in(0).dtype()));
}

// The type in which a half's statistics are computed: attribute stash_type names it.
Result<DType> stash_type(NodeContext& n, DType dtype) {
  if (dtype != DType::F16 && dtype != DType::BF16) return dtype;
  const int64_t given = n.int_attr("stash_type", 1);
  const auto stash = dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(given, -1, 1000)));
  if (!stash) return n.refuse(stash.error().code, stash.error().message);
  if (!is_float(*stash)) return n.invalid("stash_type is no float type");
  return *stash;
}

Result<Item> scale_and_shift(NodeContext& n, Item y, const Item* scale, const Item* bias) {
  if (scale) {
    WEFT_TRY(y, n.emit(OpKind::Mul, {y, *scale}));
  }
  if (bias) {
    WEFT_TRY(y, n.emit(OpKind::Add, {y, *bias}));
  }
  return y;
}

// Halves: statistics in the wider type, scale and bias in x's own.
Status layer_norm_of_halves(NodeContext& n, int64_t axis, double epsilon, DType stash) {
  WEFT_TRY(const Item wide, n.cast(n.in(0), stash));
  WEFT_TRY(Items results,
           n.emit_all(OpKind::LayerNorm, {wide}, {{Attr::Axis, axis}, {Attr::Epsilon, epsilon}}));
  WEFT_TRY(Item y, n.cast(results[0], n.in(0).dtype()));
  WEFT_TRY(results[0], scale_and_shift(n, std::move(y), &n.in(1), n.has(2) ? &n.in(2) : nullptr));
  for (size_t i = 0; i < 3 && i < n.output_count(); ++i) n.out(i, std::move(results[i]));
  return {};
}

Status lower_layer_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, x.rank()));
  WEFT_TRY(const double epsilon, read_epsilon(n, 1e-5));
  WEFT_TRY(const DType stash, stash_type(n, x.dtype()));
  if (stash != x.dtype()) return layer_norm_of_halves(n, axis, epsilon, stash);
  const Shape normalised(x.shape().begin() + axis, x.shape().end());
  Items operands{x};
  for (size_t i = 1; i <= 2 && n.has(i); ++i) {
    WEFT_TRY(Item operand, n.expand(n.in(i), normalised));
    operands.push_back(std::move(operand));
  }
  WEFT_TRY(Items results, n.emit_all(OpKind::LayerNorm, std::move(operands),
                                     {{Attr::Axis, axis}, {Attr::Epsilon, epsilon}}));
  for (size_t i = 0; i < 3 && i < n.output_count(); ++i) n.out(i, std::move(results[i]));
  return {};
}

// x / sqrt(mean of x^2 over the dims from `axis` on + epsilon) * scale
Status lower_rms_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, x.rank()));
  WEFT_TRY(const double epsilon, read_epsilon(n, 1e-5));
  WEFT_TRY(const DType stash, stash_type(n, x.dtype()));
  WEFT_TRY(const Item wide, n.cast(x, stash));
  WEFT_TRY(RmsNorm norm, rms_norm(n, wide, axis, epsilon));
  if (n.wants(1)) n.out(1, norm.inverse);
  WEFT_TRY(const Item y, n.cast(norm.y, x.dtype()));
  return n.give(scale_and_shift(n, y, &n.in(1), nullptr));
}

// Each sample's channels normalised in groups. Scale and bias: one a group in opset 18, one a channel later.
Status lower_group_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item& x = n.in(0);
  const int64_t groups = n.int_attr("num_groups", 0);
  if (x.rank() < 2) return n.invalid("x " + to_string(x.spec) + " has no channels");
  const int64_t samples = x.shape()[0], channels = x.shape()[1];
  if (groups < 1 || channels % groups != 0)
    return n.invalid("num_groups is " + std::to_string(groups) + " for " + std::to_string(channels) +
                     " channels");
  WEFT_TRY(const double epsilon, read_epsilon(n, 1e-5));
  WEFT_TRY(const DType stash, stash_type(n, x.dtype()));
  const int64_t count =
      samples * channels == 0 ? 0 : x.spec.element_count() / (samples * channels) * (channels / groups);
  WEFT_TRY(Item y, n.cast(x, stash));
  WEFT_TRY(y, n.reshape(y, {samples, groups, count}));
  WEFT_TRY(y, n.emit(OpKind::LayerNorm, {y}, {{Attr::Axis, int64_t{2}}, {Attr::Epsilon, epsilon}}));
  WEFT_TRY(y, n.cast(y, x.dtype()));
  const int64_t places = n.opset() < 21 ? groups : channels;
  for (size_t i = 1; i <= 2; ++i)
    if (n.in(i).shape() != Shape{places})
      return n.invalid("operand " + std::to_string(i) + " is " + to_string(n.in(i).spec) + ", want [" +
                       std::to_string(places) + "]");
  WEFT_TRY(y, n.reshape(y, {samples, places, places == 0 ? 0 : count * groups / places}));
  WEFT_TRY(const Item scale, n.reshape(n.in(1), {places, 1}));
  WEFT_TRY(const Item bias, n.reshape(n.in(2), {places, 1}));
  WEFT_TRY(y, scale_and_shift(n, y, &scale, &bias));
  return n.give(n.reshape(y, x.shape()));
}

// Each sample and channel normalised over its own plane.
Status lower_instance_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item& x = n.in(0);
  if (x.rank() < 3) return n.invalid("x " + to_string(x.spec) + " has no spatial dims");
  WEFT_TRY(const double epsilon, read_epsilon(n, 1e-5));
  int64_t plane = 1;
  for (size_t d = 2; d < x.shape().size(); ++d) plane *= x.shape()[d];
  WEFT_TRY(const Item flat, n.reshape(x, {x.shape()[0], x.shape()[1], plane}));
  WEFT_TRY(const Item normal,
           n.emit(OpKind::LayerNorm, {flat}, {{Attr::Axis, int64_t{2}}, {Attr::Epsilon, epsilon}}));
  WEFT_TRY(const Item scale, n.reshape(n.in(1), {x.shape()[1], 1}));
  WEFT_TRY(const Item bias, n.reshape(n.in(2), {x.shape()[1], 1}));
  WEFT_TRY(Item y, n.emit(OpKind::Mul, {normal, scale}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, bias}));
  return n.give(n.reshape(y, x.shape()));
}

Status lower_mean_variance_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  Ints axes = n.ints_attr("axes");
  if (axes.empty()) axes = {0, 2, 3};
  for (int64_t& axis : axes) {
    const auto normal = dag::normalise_axis(axis, x.rank());
    if (!normal) return n.invalid(normal.error().message);
    axis = *normal;
  }
  WEFT_TRY(const Item mean, n.reduce(OpKind::ReduceMean, x, axes, true));
  WEFT_TRY(const Item centred, n.emit(OpKind::Sub, {x, mean}));
  WEFT_TRY(const Item squares, n.emit(OpKind::Mul, {centred, centred}));
  WEFT_TRY(Item deviation, n.reduce(OpKind::ReduceMean, squares, axes, true));
  WEFT_TRY(deviation, n.emit(OpKind::Sqrt, {deviation}));
  WEFT_TRY(deviation, n.emit(OpKind::Add, {deviation, n.like(x, 1e-9)}));
  return n.give(n.emit(OpKind::Div, {centred, deviation}));
}

// x / (bias + alpha / size * sum of squares over `size` neighbouring channels) ^ beta
Status lower_lrn(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t size = n.int_attr("size", 0);
  if (x.rank() < 2 || size < 1 || size > 4096) return n.invalid("size is " + std::to_string(size));
  const Item alpha = n.like(x, n.float_attr("alpha", 1e-4));
  const Item beta = n.like(x, n.float_attr("beta", 0.75));
  int64_t plane = 1;
  for (size_t d = 2; d < x.shape().size(); ++d) plane *= x.shape()[d];
  WEFT_TRY(Item y, n.emit(OpKind::Mul, {x, x}));
  WEFT_TRY(y, n.reshape(y, {x.shape()[0], 1, x.shape()[1], plane}));
  // An average over the channels that counts the padding is the sum over size.
  WEFT_TRY(y, n.emit(OpKind::AveragePool, {y},
                     {{Attr::Kernel, Ints{size, 1}},
                      {Attr::Strides, Ints{1, 1}},
                      {Attr::Pads, Ints{(size - 1) / 2, 0, size - 1 - (size - 1) / 2, 0}},
                      {Attr::CeilMode, int64_t{0}},
                      {Attr::CountIncludePad, int64_t{1}}}));
  WEFT_TRY(y, n.reshape(y, x.shape()));
  WEFT_TRY(y, n.emit(OpKind::Mul, {y, alpha}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, n.like(x, n.float_attr("bias", 1))}));
  WEFT_TRY(y, n.emit(OpKind::Pow, {y, beta}));
  return n.give(n.emit(OpKind::Div, {x, y}));
}

Status lower_lp_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const int64_t p = n.int_attr("p", 2);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, x.rank()));
  if (p != 1 && p != 2) return n.invalid("p is " + std::to_string(p));
  WEFT_TRY(Item norm, p == 1 ? n.emit(OpKind::Abs, {x}) : n.emit(OpKind::Mul, {x, x}));
  WEFT_TRY(norm, n.reduce(OpKind::ReduceSum, norm, {axis}, true));
  // A row of zeros stays zero, and its gradient finite: neither the root nor the quotient sees the zero.
  WEFT_TRY(const Item none, n.emit(OpKind::Equal, {norm, n.like(norm, 0)}));
  WEFT_TRY(norm, n.emit(OpKind::Where, {none, n.like(norm, 1), norm}));
  if (p == 2) {
    WEFT_TRY(norm, n.emit(OpKind::Sqrt, {norm}));
  }
  return n.give(n.emit(OpKind::Div, {x, norm}));
}

constexpr LowerRow kNormalisationRows[] = {
    {"BatchNormalization", lower_batch_norm, operands(0, 1, 2)},
    {"LayerNormalization", lower_layer_norm},
    {"RMSNormalization", lower_rms_norm},
    {"SimplifiedLayerNormalization", lower_rms_norm},  // as onnxruntime's optimiser writes it
    {"GroupNormalization", lower_group_norm},
    {"InstanceNormalization", lower_instance_norm},
    {"MeanVarianceNormalization", lower_mean_variance_norm},
    {"LRN", lower_lrn},
    {"LpNormalization", lower_lp_norm},
};

}  // namespace

Result<RmsNorm> rms_norm(NodeContext& n, const Item& x, int64_t axis, double epsilon) {
  Ints axes;
  for (int64_t d = axis; d < x.rank(); ++d) axes.push_back(d);
  WEFT_TRY(Item mean, n.emit(OpKind::Mul, {x, x}));
  WEFT_TRY(mean, n.reduce(OpKind::ReduceMean, mean, axes, true));
  WEFT_TRY(mean, n.emit(OpKind::Add, {mean, n.like(mean, epsilon)}));
  WEFT_TRY(mean, n.emit(OpKind::Sqrt, {mean}));
  WEFT_TRY(Item inverse, n.emit(OpKind::Reciprocal, {mean}));
  WEFT_TRY(Item y, n.emit(OpKind::Mul, {x, inverse}));
  return RmsNorm{std::move(y), std::move(inverse)};
}

std::span<const LowerRow> normalisation_lowerings() { return kNormalisationRows; }

}  // namespace weft::onnx
