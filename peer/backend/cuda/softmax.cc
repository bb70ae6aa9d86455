// Softmax, its logarithm, and the cross entropy over classes. A line of classes that the registers of a warp
// or block hold is read once; a longer one, or one across others, is read for its largest and its sum and
// again for the results.
#include "peer/backend/cuda/kernels/softmax.h"

#include "peer/backend/cuda/kernel.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::OpKind;
using dag::Shape;

Lines lines_along(const Shape& shape, int64_t axis) {
  const auto at = static_cast<size_t>(axis);
  return whole_lines(product(shape, 0, at), shape[at], product(shape, at + 1, shape.size()));
}
Lines lines_along_axis(const KernelRequest& request, size_t operand) {
  return lines_along(request.in_shape(operand), request.attributes().get_int(Attr::Axis));
}

KernelResult make_forward(const KernelRequest& request) {
  const Lines lines = lines_along_axis(request, 0);
  const auto& kernel = form_for(kSoftmaxForms, lines);
  const int32_t logarithm = request.op.kind == OpKind::LogSoftmax;
  const int64_t count = request.in_count(0);
  const int x = request.input_slot(0), y = request.output_slot(0);
  const auto run = [=, &kernel](const Call& call) -> Status {
    return call.launch(kernel, grid_of(lines),
                       {lines, call.in<float>(x, count), call.out<float>(y, count), logarithm});
  };
  return request.make(kernel.name, run, 0, {x});
}

KernelResult make_backward(const KernelRequest& request) {
  const Lines lines = lines_along_axis(request, 0);
  const auto& kernel = form_for(kSoftmaxGradForms, lines);
  const int32_t logarithm = request.op.kind == OpKind::LogSoftmaxGrad;
  const int64_t count = request.in_count(0);
  const int dy = request.input_slot(0), y = request.input_slot(1), dx = request.output_slot(0);
  const auto run = [=, &kernel](const Call& call) -> Status {
    return call.launch(
        kernel, grid_of(lines),
        {lines, call.in<float>(dy, count), call.in<float>(y, count), call.out<float>(dx, count), logarithm});
  };
  return request.make(kernel.name, run, 0, {dy});
}

enum class Reduction { None, Mean, Sum };

// What the two cross-entropy kernels share.
struct CrossEntropy {
  Lines lines;
  Reduction reduction = Reduction::None;
  bool wide_labels, has_ignored;
  int64_t ignored;
  int logits, labels, weight;

  CrossEntropy(const KernelRequest& request, size_t logits_operand)
      : lines(lines_along_axis(request, logits_operand)),
        wide_labels(request.in(logits_operand + 1).spec.dtype == dag::DType::I64),
        has_ignored(request.attributes().has(Attr::IgnoreIndex)),
        ignored(request.attributes().get_int(Attr::IgnoreIndex)),
        logits(request.input_slot(logits_operand)),
        labels(request.input_slot(logits_operand + 1)),
        weight(request.input_slot(request.op.kind == OpKind::CrossEntropy ? 2 : 4)) {
    const std::string& name = request.attributes().get_string(Attr::Reduction);
    reduction = name == "mean" ? Reduction::Mean : (name == "sum" ? Reduction::Sum : Reduction::None);
  }

  int64_t count() const { return lines_count(lines); }
  int64_t elements() const { return count() * lines.size; }
  int64_t blocks_of_labels() const { return (count() + kTotalledLabels - 1) / kTotalledLabels; }
  int64_t partials_bytes() const {
    return align_up(2 * blocks_of_labels() * static_cast<int64_t>(sizeof(double)), 256);
  }
  int64_t lines_bytes() const { return align_up(count() * static_cast<int64_t>(sizeof(float)), 256); }

  Labels of(const Call& call) const {
    return {wide_labels ? Array<const int32_t>{} : call.in<int32_t>(labels, count()),
            wide_labels ? call.in<int64_t>(labels, count()) : Array<const int64_t>{},
            call.in<float>(weight, lines.size),
            lines.size,
            ignored,
            has_ignored};
  }
  // Two launches: `partials` are scratch.
  Status total(const Call& call, Array<const float> losses, Array<double> partials, Array<float> loss,
               Array<double> total_weight) const {
    WEFT_TRY_STATUS(call.launch(k_partial_totals,
                                {static_cast<uint32_t>(blocks_of_labels()), kLineThreads, 1},
                                {of(call), losses, partials, count()}));
    return call.launch(
        k_totals, {1, kLineThreads, 1},
        {{partials.data, partials.count}, loss, total_weight, reduction == Reduction::Mean ? 1 : 0});
  }
};

KernelResult make_cross_entropy(const KernelRequest& request) {
  const CrossEntropy c(request, 0);
  const int loss = request.output_slot(0), lse = request.output_slot(1);
  const bool reduces = c.reduction != Reduction::None;
  // Workspace: the sums' parts, then the losses of lines.
  const int64_t bytes = reduces ? c.partials_bytes() + c.lines_bytes() : 0;
  const auto run = [=](const Call& call) -> Status {
    const auto losses =
        reduces ? call.scratch<float>(c.partials_bytes(), c.count()) : call.out<float>(loss, c.count());
    WEFT_TRY_STATUS(call.launch(k_line_losses, grid_of(c.lines),
                                {c.lines, c.of(call), call.in<float>(c.logits, c.elements()),
                                 call.out<float>(lse, c.count()), losses}));
    if (!reduces) return {};
    return c.total(call, {losses.data, losses.count}, call.scratch<double>(0, 2 * c.blocks_of_labels()),
                   call.out<float>(loss, 1), {});
  };
  return request.make("lines of classes", run, bytes);
}

KernelResult make_cross_entropy_grad(const KernelRequest& request) {
  const CrossEntropy c(request, 1);
  const int dloss = request.input_slot(0), lse = request.input_slot(3), dx = request.output_slot(0);
  const bool mean = c.reduction == Reduction::Mean;
  // Workspace: the factors of lines, the weights' total, its parts.
  const int64_t total_at = c.lines_bytes(), partials_at = total_at + 256;
  const int64_t bytes = mean ? partials_at + c.partials_bytes() : c.lines_bytes();
  const auto run = [=](const Call& call) -> Status {
    const auto factors = call.scratch<float>(0, c.count());
    Array<double> total;
    if (mean) {
      total = call.scratch<double>(total_at, 1);
      WEFT_TRY_STATUS(
          c.total(call, {}, call.scratch<double>(partials_at, 2 * c.blocks_of_labels()), {}, total));
    }
    const int64_t upstream = c.reduction == Reduction::None ? c.count() : 1;
    const auto blocks = static_cast<uint32_t>((c.count() + kLineThreads - 1) / kLineThreads);
    WEFT_TRY_STATUS(
        call.launch(k_loss_factors, {blocks, kLineThreads, 1},
                    {c.of(call), call.in<float>(dloss, upstream), {total.data, total.count}, factors}));
    return call.launch(k_cross_entropy_grad, grid_of(c.lines),
                       {c.lines,
                        c.of(call),
                        call.in<float>(c.logits, c.elements()),
                        call.in<float>(lse, c.count()),
                        {factors.data, factors.count},
                        call.out<float>(dx, c.elements())});
  };
  return request.make("lines of classes", run, bytes, {c.logits});
}

}  // namespace

KernelResult make_softmax(const KernelRequest& request) {
  const bool grad_of_loss = request.op.kind == OpKind::CrossEntropyGrad;
  const dag::Value& x = request.in(grad_of_loss ? 1 : 0);
  if (!request.is_f32(x) || x.spec.element_count() == 0) return request.decline();
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

}  // namespace weft::peer::cuda
