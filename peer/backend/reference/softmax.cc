// Softmax, its logarithm, and cross entropy.
#include <cmath>
#include <limits>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// One row along the axis: element k of it.
struct Row {
  const AxisView& view;
  int64_t outer, inner;
  size_t operator[](int64_t k) const { return at((outer * view.size + k) * view.inner + inner); }
};
template <typename Visit>
void for_each_row(const AxisView& view, Visit visit) {
  for (int64_t o = 0; o < view.outer; ++o)
    for (int64_t i = 0; i < view.inner; ++i) visit(Row{view, o, i}, at(o * view.inner + i));
}

double largest(const Reals& x, const Row& row) {
  double best = -std::numeric_limits<double>::infinity();
  for (int64_t k = 0; k < row.view.size; ++k) {
    if (std::isnan(x[row[k]])) return x[row[k]];
    best = std::max(best, x[row[k]]);
  }
  return best;
}
// NaN when the largest is infinite, as PyTorch's log_softmax has it.
double log_sum_exp(const Reals& x, const Row& row) {
  const double most = largest(x, row);
  double sum = 0;
  for (int64_t k = 0; k < row.view.size; ++k) sum += std::exp(x[row[k]] - most);
  return most + std::log(sum);
}

void softmax(const Call& c) {
  const Reals& x = c.reals(0);
  Reals& y = c.out().reals;
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for_each_row(view, [&](const Row& row, size_t) {
    const double most = largest(x, row);  // -inf - -inf is NaN: a row of nothing has no softmax
    double sum = 0;
    for (int64_t k = 0; k < view.size; ++k) sum += y[row[k]] = std::exp(x[row[k]] - most);
    for (int64_t k = 0; k < view.size; ++k) y[row[k]] /= sum;
  });
}

void softmax_grad(const Call& c) {
  const Reals &dy = c.reals(0), &y = c.reals(1);
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for_each_row(view, [&](const Row& row, size_t) {
    double dot = 0;
    for (int64_t k = 0; k < view.size; ++k) dot += dy[row[k]] * y[row[k]];
    for (int64_t k = 0; k < view.size; ++k) c.out().reals[row[k]] = y[row[k]] * (dy[row[k]] - dot);
  });
}

void log_softmax(const Call& c) {
  const Reals& x = c.reals(0);
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for_each_row(view, [&](const Row& row, size_t) {
    const double lse = log_sum_exp(x, row);
    for (int64_t k = 0; k < view.size; ++k) c.out().reals[row[k]] = x[row[k]] - lse;
  });
}

void log_softmax_grad(const Call& c) {
  const Reals &dy = c.reals(0), &y = c.reals(1);
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  for_each_row(view, [&](const Row& row, size_t) {
    double sum = 0;
    for (int64_t k = 0; k < view.size; ++k) sum += dy[row[k]];
    for (int64_t k = 0; k < view.size; ++k) c.out().reals[row[k]] = dy[row[k]] - std::exp(y[row[k]]) * sum;
  });
}

// What a label weighs in the loss: 0 when ignored, NaN when it names no class.
double label_weight(const Call& c, int64_t label, int64_t classes, const RefValue* weight) {
  if (c.attributes.has(Attr::IgnoreIndex) && label == c.attributes.get_int(Attr::IgnoreIndex)) return 0;
  if (label < 0 || label >= classes) return std::numeric_limits<double>::quiet_NaN();
  return weight ? weight->reals[at(label)] : 1;
}
bool counts(const Call& c, int64_t label) {
  return !c.attributes.has(Attr::IgnoreIndex) || label != c.attributes.get_int(Attr::IgnoreIndex);
}

void cross_entropy(const Call& c) {
  const Reals& logits = c.reals(0);
  const RefValue* weight = c.has(2) ? c.inputs[2] : nullptr;
  const std::string& reduction = c.attributes.get_string(Attr::Reduction);
  const AxisView view = axis_view(c.shape(0), c.attributes.get_int(Attr::Axis));
  double sum = 0, weights = 0;
  for_each_row(view, [&](const Row& row, size_t i) {
    const int64_t label = c.wholes(1)[i];
    const double lse = log_sum_exp(logits, row), w = label_weight(c, label, view.size, weight);
    const bool in_range = label >= 0 && label < view.size;
    const double loss = !counts(c, label) ? 0 : in_range ? w * (lse - logits[row[label]]) : w;
    c.out(1).reals[i] = lse;
    sum += loss;
    weights += w;
    if (reduction == "none") c.out(0).reals[i] = loss;
  });
  if (reduction == "sum") c.out(0).reals[0] = sum;
  if (reduction == "mean") c.out(0).reals[0] = sum / weights;
}

void cross_entropy_grad(const Call& c) {  // operands dloss, logits, labels, lse, weight
  const Reals &dloss = c.reals(0), &logits = c.reals(1), &lse = c.reals(3);
  const Wholes& labels = c.wholes(2);
  const RefValue* weight = c.has(4) ? c.inputs[4] : nullptr;
  const std::string& reduction = c.attributes.get_string(Attr::Reduction);
  const AxisView view = axis_view(c.shape(1), c.attributes.get_int(Attr::Axis));
  double weights = 0;
  for (const int64_t label : labels) weights += label_weight(c, label, view.size, weight);
  for_each_row(view, [&](const Row& row, size_t i) {
    if (!counts(c, labels[i])) return;
    double factor = label_weight(c, labels[i], view.size, weight) * dloss[reduction == "none" ? i : 0];
    if (reduction == "mean") factor /= weights;
    for (int64_t k = 0; k < view.size; ++k)
      c.out().reals[row[k]] = factor * (std::exp(logits[row[k]] - lse[i]) - (k == labels[i] ? 1 : 0));
  });
}

}  // namespace

void run_softmax(const Call& call) {
  switch (call.kind) {
    case OpKind::Softmax:
      return softmax(call);
    case OpKind::SoftmaxGrad:
      return softmax_grad(call);
    case OpKind::LogSoftmax:
      return log_softmax(call);
    case OpKind::LogSoftmaxGrad:
      return log_softmax_grad(call);
    case OpKind::CrossEntropy:
      return cross_entropy(call);
    case OpKind::CrossEntropyGrad:
      return cross_entropy_grad(call);
    default:
      WEFT_CHECK_MSG(false, "not of the softmax family");
  }
}

}  // namespace weft::peer::reference
