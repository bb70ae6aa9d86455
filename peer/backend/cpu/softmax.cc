// Softmax, its logarithm, and the cross entropy over classes. A row is one line of classes; where the class
// axis is not the last one, rows are gathered into a buffer and scattered back.
#include <cmath>
#include <cstring>
#include <limits>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

// A tensor as [outer, classes, inner]: rows = outer * inner.
struct Rows {
  int64_t outer = 1, classes = 1, inner = 1;

  Rows(const Shape& shape, int64_t axis)
      : outer(product(shape, 0, static_cast<size_t>(axis))),
        classes(shape[static_cast<size_t>(axis)]),
        inner(product(shape, static_cast<size_t>(axis) + 1, shape.size())) {}
  int64_t count() const { return outer * inner; }
  int64_t offset(int64_t row) const { return row / inner * classes * inner + row % inner; }

  // The row in one piece: itself, or a copy in `buffer`.
  const float* gather(const float* x, int64_t row, float* buffer) const {
    x += offset(row);
    if (inner == 1) return x;
    for (int64_t c = 0; c < classes; ++c) buffer[c] = x[c * inner];
    return buffer;
  }
  float* target(float* y, int64_t row, float* buffer) const { return inner == 1 ? y + offset(row) : buffer; }
  void scatter(const float* buffer, float* y, int64_t row) const {
    if (inner == 1) return;
    y += offset(row);
    for (int64_t c = 0; c < classes; ++c) y[c * inner] = buffer[c];
  }
};

// Three rows for whoever works on strided ones.
float* row_buffer(const Rows& rows, int which) {
  static thread_local std::vector<float> buffers;
  const size_t needed = rows.inner == 1 ? 0 : static_cast<size_t>(3 * rows.classes);
  if (buffers.size() < needed) buffers.resize(needed);
  return buffers.data() + (rows.inner == 1 ? 0 : which * rows.classes);
}

KernelResult make_forward(const KernelRequest& request) {
  const Rows rows(request.in_shape(0), request.attributes().get_int(Attr::Axis));
  const auto f =
      request.op.kind == OpKind::Softmax ? request.loops.softmax_row : request.loops.log_softmax_row;
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    team.ranges(rows.count(), rows_grain(rows.classes * 8), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* source = rows.gather(call.in<float>(x), r, row_buffer(rows, 0));
        float* target = rows.target(call.out<float>(y), r, row_buffer(rows, 1));
        f(source, target, rows.classes);
        rows.scatter(target, call.out<float>(y), r);
      }
    });
    return {};
  };
  const bool in_place = request.op.kind == OpKind::Softmax;  // log softmax reads its row twice
  return request.make("vector rows", run, 0, {in_place ? x : -1});
}

KernelResult make_backward(const KernelRequest& request) {
  const Rows rows(request.in_shape(0), request.attributes().get_int(Attr::Axis));
  const auto f = request.op.kind == OpKind::SoftmaxGrad ? request.loops.softmax_grad_row
                                                        : request.loops.log_softmax_grad_row;
  const int dy = request.input_slot(0), y = request.input_slot(1), dx = request.output_slot(0);
  const auto run = [=, &team = request.team](const Call& call) -> Status {
    team.ranges(rows.count(), rows_grain(rows.classes * 4), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* upstream = rows.gather(call.in<float>(dy), r, row_buffer(rows, 0));
        const float* result = rows.gather(call.in<float>(y), r, row_buffer(rows, 1));
        float* target = rows.target(call.out<float>(dx), r, row_buffer(rows, 2));
        f(upstream, result, target, rows.classes);
        rows.scatter(target, call.out<float>(dx), r);
      }
    });
    return {};
  };
  return request.make("vector rows", run, 0, {dy});
}

enum class Reduction { None, Mean, Sum };

// What the two cross-entropy kernels share.
struct CrossEntropy {
  Rows rows;
  Reduction reduction = Reduction::None;
  bool wide_labels, has_ignored;
  int64_t ignored;
  int logits, labels, weight;

  CrossEntropy(const KernelRequest& request, size_t logits_operand)
      : rows(request.in_shape(logits_operand), request.attributes().get_int(Attr::Axis)),
        wide_labels(request.in(logits_operand + 1).spec.dtype == dag::DType::I64),
        has_ignored(request.attributes().has(Attr::IgnoreIndex)),
        ignored(request.attributes().get_int(Attr::IgnoreIndex)),
        logits(request.input_slot(logits_operand)),
        labels(request.input_slot(logits_operand + 1)),
        weight(request.input_slot(request.op.kind == OpKind::CrossEntropy ? 2 : 4)) {
    const std::string& name = request.attributes().get_string(Attr::Reduction);
    reduction = name == "mean" ? Reduction::Mean : (name == "sum" ? Reduction::Sum : Reduction::None);
  }

  int64_t label(const Call& call, int64_t row) const {
    return wide_labels ? call.in<int64_t>(labels)[row] : call.in<int32_t>(labels)[row];
  }
  bool is_ignored(int64_t label) const { return has_ignored && label == ignored; }
  bool is_valid(int64_t label) const { return label >= 0 && label < rows.classes; }
  // Zero for an ignored label, NaN for one that is no class.
  double weight_of(const Call& call, int64_t label) const {
    if (is_ignored(label)) return 0;
    if (!is_valid(label)) return std::numeric_limits<double>::quiet_NaN();
    return weight < 0 ? 1.0 : static_cast<double>(call.in<float>(weight)[label]);
  }
  // The sum over rows, in order.
  double total_weight(const Call& call) const {
    double total = 0;
    for (int64_t r = 0; r < rows.count(); ++r) total += weight_of(call, label(call, r));
    return total;
  }
};

KernelResult make_cross_entropy(const KernelRequest& request) {
  const CrossEntropy c(request, 0);
  const int loss = request.output_slot(0), lse = request.output_slot(1);
  const int64_t losses_bytes = align_up(c.rows.count() * static_cast<int64_t>(sizeof(double)));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const Rows& rows = c.rows;
    double* losses = call.scratch<double>();
    team.ranges(rows.count(), rows_grain(rows.classes * 8), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* x = rows.gather(call.in<float>(c.logits), r, row_buffer(rows, 0));
        const float sum = loops.log_sum_exp_row(x, rows.classes);
        call.out<float>(lse)[r] = sum;
        const int64_t label = c.label(call, r);
        const double weight = c.weight_of(call, label);
        losses[r] = c.is_ignored(label) ? 0
                    : c.is_valid(label) ? weight * (static_cast<double>(sum) - static_cast<double>(x[label]))
                                        : weight;
      }
    });
    float* result = call.out<float>(loss);
    if (c.reduction == Reduction::None) {
      for (int64_t r = 0; r < rows.count(); ++r) result[r] = static_cast<float>(losses[r]);
      return {};
    }
    double total = 0;
    for (int64_t r = 0; r < rows.count(); ++r) total += losses[r];
    if (c.reduction == Reduction::Mean) total /= c.total_weight(call);
    *result = static_cast<float>(total);
    return {};
  };
  return request.make("vector rows", run, losses_bytes);
}

KernelResult make_cross_entropy_grad(const KernelRequest& request) {
  const CrossEntropy c(request, 1);
  const int dloss = request.input_slot(0), lse = request.input_slot(3), dx = request.output_slot(0);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    const Rows& rows = c.rows;
    const double total = c.reduction == Reduction::Mean ? c.total_weight(call) : 1.0;
    team.ranges(rows.count(), rows_grain(rows.classes * 4), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t label = c.label(call, r);
        const double upstream =
            static_cast<double>(call.in<float>(dloss)[c.reduction == Reduction::None ? r : 0]);
        const float factor = static_cast<float>(upstream * c.weight_of(call, label) / total);
        const float* x = rows.gather(call.in<float>(c.logits), r, row_buffer(rows, 0));
        float* target = rows.target(call.out<float>(dx), r, row_buffer(rows, 1));
        if (c.is_ignored(label)) {
          loops.fill(target, 0.0f, rows.classes);
        } else {
          loops.scaled_exp_row(x, call.in<float>(lse)[r], factor, target, rows.classes);
          if (c.is_valid(label)) target[label] -= factor;
        }
        rows.scatter(target, call.out<float>(dx), r);
      }
    });
    return {};
  };
  return request.make("vector rows", run, 0, {c.logits});
}

}  // namespace

KernelResult make_softmax(const KernelRequest& request) {
  const bool grad_of_loss = request.op.kind == OpKind::CrossEntropyGrad;
  if (!request.is_f32(request.in(grad_of_loss ? 1 : 0)) || !request.all_plain()) return request.decline();
  switch (request.op.kind) {
    case OpKind::Softmax:
    case OpKind::LogSoftmax:
      return make_forward(request);
    case OpKind::SoftmaxGrad:
    case OpKind::LogSoftmaxGrad:
      return make_backward(request);
    case OpKind::CrossEntropy:
      return make_cross_entropy(request);
    case OpKind::CrossEntropyGrad:
      return make_cross_entropy_grad(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
