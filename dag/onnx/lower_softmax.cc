// Softmax, its relatives, and the losses built on it.
#include <algorithm>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

// Before opset 13 softmax ran over all dims from `axis` on, as one.
Result<Item> softmax(NodeContext& n, const Item& x, OpKind kind) {
  const bool coerced = n.opset() < 13;
  if (x.rank() == 0) return n.invalid("x is a scalar");
  WEFT_TRY(const int64_t axis,
           n.axis_attr("axis", coerced ? 1 : -1, std::max<int64_t>(x.rank(), coerced ? 2 : 1)));
  int64_t before = 1;
  int64_t from = 1;
  for (int64_t d = 0; d < x.rank(); ++d) (d < axis ? before : from) *= x.shape()[static_cast<size_t>(d)];
  if (!coerced || (axis < x.rank() && from == x.shape()[static_cast<size_t>(axis)]))
    return n.emit(kind, {x}, {{Attr::Axis, axis}});
  WEFT_TRY(const Item flat, n.reshape(x, {before, from}));
  WEFT_TRY(const Item y, n.emit(kind, {flat}, {{Attr::Axis, int64_t{1}}}));
  return n.reshape(y, x.shape());
}

Status lower_softmax(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(softmax(n, n.in(0), OpKind::Softmax));
}
Status lower_log_softmax(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(softmax(n, n.in(0), OpKind::LogSoftmax));
}

// One at the first maximum along the axis, zero elsewhere.
Result<Item> hardmax(NodeContext& n, const Item& x, int64_t axis) {
  WEFT_TRY(const Item best, n.emit(OpKind::ArgMax, {x}, {{Attr::Axis, axis}, {Attr::KeepDims, int64_t{1}}}));
  Shape shape(x.shape().size(), 1);
  shape[static_cast<size_t>(axis)] = x.shape()[static_cast<size_t>(axis)];
  WEFT_TRY_STATUS(dag::checked_element_count(shape));
  Tensor positions({DType::I64, shape});
  int64_t next = 0;
  for (int64_t& position : positions.mutable_as<int64_t>()) position = next++;
  WEFT_TRY(const Item hit, n.emit(OpKind::Equal, {best, n.constant(positions)}));
  return n.cast(hit, x.dtype());
}
Status lower_hardmax(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const bool coerced = n.opset() < 13;
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", coerced ? 1 : -1, x.rank()));
  if (!coerced) return n.give(hardmax(n, x, axis));
  int64_t before = 1;
  int64_t from = 1;
  for (int64_t d = 0; d < x.rank(); ++d) (d < axis ? before : from) *= x.shape()[static_cast<size_t>(d)];
  WEFT_TRY(const Item flat, n.reshape(x, {before, from}));
  WEFT_TRY(const Item y, hardmax(n, flat, 1));
  return n.give(n.reshape(y, x.shape()));
}

// ---- losses: scores [N, C, d...], labels [N, d...], one weight a class ----

struct LossForm {
  std::string reduction = "mean";
  std::optional<int64_t> ignored;
};

Result<LossForm> read_loss(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  LossForm form;
  form.reduction = n.string_attr("reduction", "mean");
  if (form.reduction != "none" && form.reduction != "mean" && form.reduction != "sum")
    return n.invalid("reduction is '" + form.reduction.substr(0, 32) + "'");
  if (n.has_attr("ignore_index")) form.ignored = n.int_attr("ignore_index", 0);
  const Shape& scores = n.in(0).shape();
  if (scores.size() < 2) return n.invalid("the scores " + to_string(n.in(0).spec) + " have no classes");
  Shape labels = scores;
  labels.erase(labels.begin() + 1);
  if (n.in(1).shape() != labels)
    return n.invalid("labels " + to_string(n.in(1).spec) + " do not go with scores " +
                     to_string(n.in(0).spec));
  return form;
}

Status lower_softmax_cross_entropy(NodeContext& n) {
  WEFT_TRY(const LossForm form, read_loss(n));
  Attributes attributes{{Attr::Axis, int64_t{1}}, {Attr::Reduction, form.reduction}};
  if (form.ignored) attributes.set(Attr::IgnoreIndex, *form.ignored);
  Items operands{n.in(0), n.in(1)};
  if (n.has(2)) operands.push_back(n.in(2));
  WEFT_TRY(Items results, n.emit_all(OpKind::CrossEntropy, std::move(operands), std::move(attributes)));
  n.out(0, std::move(results[0]));
  if (n.wants(1)) {
    WEFT_TRY(Item log_probabilities, n.emit(OpKind::LogSoftmax, {n.in(0)}, {{Attr::Axis, int64_t{1}}}));
    n.out(1, std::move(log_probabilities));
  }
  return {};
}

Result<Item> sum_all(NodeContext& n, const Item& x) {
  Ints axes;
  for (int64_t d = 0; d < x.rank(); ++d) axes.push_back(d);
  return n.reduce(OpKind::ReduceSum, x, axes, false);
}

// weight of each label: the class's, and 0 for an ignored label.
Result<Item> label_weights(NodeContext& n, const Item& safe_labels, const std::optional<Item>& ignored) {
  const Item& scores = n.in(0);
  WEFT_TRY(Item weights, n.expand(n.like(scores, 1), safe_labels.shape()));
  if (n.has(2)) {
    WEFT_TRY(weights, n.emit(OpKind::Gather, {n.in(2), safe_labels}, {{Attr::Axis, int64_t{0}}}));
  }
  if (!ignored) return weights;
  return n.emit(OpKind::Where, {*ignored, n.like(scores, 0), weights});
}

// Of log-probabilities, so that the softmax within CrossEntropy must not run: picked out by index.
Status lower_negative_log_likelihood(NodeContext& n) {
  WEFT_TRY(const LossForm form, read_loss(n));
  const Item& scores = n.in(0);
  Item labels = n.in(1);
  std::optional<Item> ignored;
  if (form.ignored) {
    const Item index = n.like(labels, static_cast<double>(*form.ignored));
    WEFT_TRY(ignored, n.emit(OpKind::Equal, {labels, index}));
    WEFT_TRY(labels, n.emit(OpKind::Where, {*ignored, n.like(labels, 0), labels}));
  }
  Shape column = labels.shape();
  column.insert(column.begin() + 1, 1);
  WEFT_TRY(const Item index, n.reshape(labels, column));
  WEFT_TRY(Item loss, n.emit(OpKind::GatherElements, {scores, index}, {{Attr::Axis, int64_t{1}}}));
  WEFT_TRY(loss, n.reshape(loss, labels.shape()));
  WEFT_TRY(loss, n.emit(OpKind::Neg, {loss}));
  WEFT_TRY(const Item weights, label_weights(n, labels, ignored));
  WEFT_TRY(loss, n.emit(OpKind::Mul, {loss, weights}));
  if (form.reduction == "none") return n.give(loss);
  WEFT_TRY(const Item sum, sum_all(n, loss));
  if (form.reduction == "sum") return n.give(sum);
  WEFT_TRY(const Item total, sum_all(n, weights));
  return n.give(n.emit(OpKind::Div, {sum, total}));
}

constexpr LowerRow kSoftmaxRows[] = {
    {"Softmax", lower_softmax},
    {"LogSoftmax", lower_log_softmax},
    {"Hardmax", lower_hardmax, kNoOperand},
    {"SoftmaxCrossEntropyLoss", lower_softmax_cross_entropy, operands(0)},
    {"NegativeLogLikelihoodLoss", lower_negative_log_likelihood, operands(0)},
};

}  // namespace

std::span<const LowerRow> softmax_lowerings() { return kSoftmaxRows; }

}  // namespace weft::onnx
