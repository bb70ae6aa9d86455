// Softmax, its logarithm, and cross entropy over logits.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

Specs infer_softmax(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 1));
  WEFT_TRY_STATUS(need_float(c, 0));
  WEFT_TRY_STATUS(axis_of(c, c.in(0).rank()));
  return std::vector<TensorSpec>{c.in(0)};
}
Specs infer_softmax_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_spec(c, 1, c.in(0).dtype, c.in(0).shape));
  return infer_softmax(c);
}

// The specs of CrossEntropy's results over logits (operand `i`), labels (`i`+1) and weight (operand `w`).
Specs cross_entropy_specs(const ShapeContext& c, size_t i, size_t w) {
  WEFT_TRY_STATUS(need_float(c, i));
  WEFT_TRY_STATUS(need_index(c, i + 1));
  const TensorSpec& logits = c.in(i);
  WEFT_TRY(const size_t axis, axis_of(c, logits.rank()));
  const int64_t classes = logits.shape[axis];
  if (classes == 0) return refuse("no classes");
  Shape labels = logits.shape;
  labels.erase(labels.begin() + static_cast<std::ptrdiff_t>(axis));
  if (c.in(i + 1).shape != labels)
    return refuse_operand(c, i + 1, "the logits' shape without the class axis");
  WEFT_TRY_STATUS(need_spec(c, w, logits.dtype, {classes}));
  const std::string& reduction = c.attributes.get_string(Attr::Reduction);
  if (reduction != "none" && reduction != "mean" && reduction != "sum")
    return refuse("attribute reduction is '" + reduction + "', want none, mean or sum");
  return std::vector<TensorSpec>{{logits.dtype, reduction == "none" ? labels : Shape{}},
                                 {logits.dtype, labels}};
}

Specs infer_cross_entropy(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  return cross_entropy_specs(c, 0, 2);
}
Specs infer_cross_entropy_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 4));
  WEFT_TRY(const std::vector<TensorSpec> forward, cross_entropy_specs(c, 1, 4));
  WEFT_TRY_STATUS(need_spec(c, 0, forward[0].dtype, forward[0].shape));
  WEFT_TRY_STATUS(need_spec(c, 3, forward[1].dtype, forward[1].shape));
  return std::vector<TensorSpec>{c.in(1)};
}

void cross_entropy_vjp(VjpContext& c) {
  if (!c.cotangent(0).valid()) return;
  std::vector<ValueId> operands{c.cotangent(0), c.in(0), c.in(1), c.out(1)};
  if (c.has_in(2)) operands.push_back(c.in(2));
  c.set(0, c.add(OpKind::CrossEntropyGrad, std::move(operands), c.attributes()));
}

void add(OpTable& table, OpKind kind, int inputs_min, int inputs_max, Specs (*infer)(const ShapeContext&),
         void (*vjp)(VjpContext&), FlopCount (*flops)(const ShapeContext&, std::span<const TensorSpec>),
         std::string_view about, IndexRule index = {}, int in_place = -1) {
  table.add({.kind = kind,
             .family = Family::Softmax,
             .inputs_min = inputs_min,
             .inputs_max = inputs_max,
             .differentiability = vjp ? Differentiability::Differentiable : Differentiability::Refused,
             .infer = infer,
             .vjp = vjp,
             .flops = flops,
             .in_place = in_place,
             .index = index,
             .about = about});
}

}  // namespace

void add_softmax_ops(OpTable& table) {
  using K = OpKind;
  using C = VjpContext&;
  add(
      table, K::Softmax, 1, 1, infer_softmax,
      [](C c) { give(c, 0, apply(K::SoftmaxGrad, cotangent(c), out(c), c.attributes())); },
      flops_an_output_element<28>, "x -> e^x / sum of e^x along axis; -inf gives 0, a row of -inf gives NaN");
  add(table, K::SoftmaxGrad, 2, 2, infer_softmax_grad, nullptr, flops_an_output_element<4>,
      "dy, y -> y * (dy - sum of dy*y along axis)");
  add(
      table, K::LogSoftmax, 1, 1, infer_softmax,
      [](C c) { give(c, 0, apply(K::LogSoftmaxGrad, cotangent(c), out(c), c.attributes())); },
      flops_an_output_element<35>, "x -> x - log(sum of e^x) along axis");
  add(table, K::LogSoftmaxGrad, 2, 2, infer_softmax_grad, nullptr, flops_an_output_element<14>,
      "dy, y -> dy - e^y * sum of dy along axis");
  add(table, K::CrossEntropy, 2, 3, infer_cross_entropy, cross_entropy_vjp, flops_an_input_element<26>,
      "logits (classes at axis), labels I32/I64, weight[C]? -> loss, lse (log of the sum of e^logits); "
      "reduction: none, sum, mean (by weight); ignore_index: labels that do not count; any other label out "
      "of [0,C) gives NaN",
      {.operand = 1});
  add(table, K::CrossEntropyGrad, 4, 5, infer_cross_entropy_grad, nullptr, flops_an_output_element<14>,
      "dloss, logits, labels, lse, weight? -> dlogits; attributes of CrossEntropy", {}, /*in_place=*/1);
}

}  // namespace weft::dag
