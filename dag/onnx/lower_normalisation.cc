// Normalisation. BatchNormalization in training mode also says what becomes of its running statistics.
#include <algorithm>

#include "dag/onnx/lowering.h"

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
  form.trains = marked && n.options().training;
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
  if (operand.initializer.empty()) return nullptr;
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

Status train_batch_norm(NodeContext& n, const BatchNormForm& form) {
  const Item& x = n.in(0);
  WEFT_TRY(const Items results,
           n.emit_all(OpKind::BatchNorm, {x, n.in(1), n.in(2)}, {{Attr::Epsilon, form.epsilon}}));
  n.out(0, results[0]);
  const Item& mean = results[1];
  Item variance = results[2];
  if (!n.options().onnx_running_statistics) {
    // PyTorch keeps the unbiased variance: n / (n - 1) times the population's.
    const auto count = static_cast<double>(x.spec.element_count() / std::max<int64_t>(1, x.shape()[1]));
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
  if (form.trains) return train_batch_norm(n, form);
  for (size_t i = 1; i < n.output_count(); ++i)
    if (n.wants(i)) return n.unsupported("its running statistics are read outside of training");
  return n.give(n.emit(OpKind::BatchNormInference, {n.in(0), n.in(1), n.in(2), n.in(3), n.in(4)},
                       {{Attr::Epsilon, form.epsilon}}));
}

Status lower_layer_norm(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", -1, x.rank()));
  WEFT_TRY(const double epsilon, read_epsilon(n, 1e-5));
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
  if (p == 2) {
    WEFT_TRY(norm, n.emit(OpKind::Sqrt, {norm}));
  }
  return n.give(n.emit(OpKind::Div, {x, norm}));
}

constexpr LowerRow kRows[] = {
    {"BatchNormalization", lower_batch_norm, operands(0, 1, 2)},
    {"LayerNormalization", lower_layer_norm},
    {"InstanceNormalization", lower_instance_norm},
    {"MeanVarianceNormalization", lower_mean_variance_norm},
    {"LRN", lower_lrn},
    {"LpNormalization", lower_lp_norm},
};

}  // namespace

std::span<const LowerRow> normalisation_lowerings() { return kRows; }

}  // namespace weft::onnx
