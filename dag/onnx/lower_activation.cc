// Activations, and Dropout. Those that ONNX defines by cases are written so that the case not taken never
// turns a gradient into NaN: exponentials only see what they are used for.
#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

Status lower_relu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  if (is_float(n.in(0).dtype())) return n.give(n.emit(OpKind::Relu, {n.in(0)}));
  return n.give(n.emit(OpKind::Max, {n.in(0), n.like(n.in(0), 0)}));
}

// x where x >= 0, slope * x elsewhere.
Result<Item> leaky(NodeContext& n, const Item& x, const Item& slope) {
  WEFT_TRY(const Item negative, n.emit(OpKind::Less, {x, n.like(x, 0)}));
  WEFT_TRY(const Item scaled, n.emit(OpKind::Mul, {x, slope}));
  return n.emit(OpKind::Where, {negative, scaled, x});
}

Status lower_leaky_relu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(leaky(n, n.in(0), n.like(n.in(0), n.float_attr("alpha", 0.01))));
}

Status lower_prelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  Item slope = n.in(1);
  // Old files give one slope a channel without saying so by shape.
  if (n.opset() < 9 && slope.rank() == 1 && n.in(0).rank() > 1 && slope.shape()[0] == n.in(0).shape()[1]) {
    Shape shape(n.in(0).shape().size() - 1, 1);
    shape[0] = slope.shape()[0];
    WEFT_TRY(slope, n.reshape(slope, shape));
  }
  return n.give(leaky(n, n.in(0), slope));
}

// scale * (relu(x) + alpha * (exp(min(x, 0) / divisor) - 1))
Result<Item> exponential_unit(NodeContext& n, double alpha, double scale, double divisor) {
  const Item& x = n.in(0);
  WEFT_TRY(const Item positive, n.emit(OpKind::Relu, {x}));
  WEFT_TRY(Item y, n.emit(OpKind::Clip, {x}, {{Attr::Max, 0.0}}));
  if (divisor != 1) {
    WEFT_TRY(y, n.emit(OpKind::Div, {y, n.like(x, divisor)}));
  }
  WEFT_TRY(y, n.emit(OpKind::Exp, {y}));
  WEFT_TRY(y, n.emit(OpKind::Sub, {y, n.like(x, 1)}));
  if (alpha != 1) {
    WEFT_TRY(y, n.emit(OpKind::Mul, {y, n.like(x, alpha)}));
  }
  WEFT_TRY(y, n.emit(OpKind::Add, {positive, y}));
  if (scale == 1) return y;
  return n.emit(OpKind::Mul, {y, n.like(x, scale)});
}

Status lower_elu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  return n.give(exponential_unit(n, n.float_attr("alpha", 1), 1, 1));
}
Status lower_selu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const double alpha = n.float_attr("alpha", 1.67326319217681884765625);
  return n.give(exponential_unit(n, alpha, n.float_attr("gamma", 1.05070102214813232421875), 1));
}
Status lower_celu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const double alpha = n.float_attr("alpha", 1);
  return n.give(exponential_unit(n, alpha, 1, alpha));
}

Result<Item> hard_sigmoid(NodeContext& n, double alpha, double beta) {
  const Item& x = n.in(0);
  WEFT_TRY(Item y, n.emit(OpKind::Mul, {x, n.like(x, alpha)}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, n.like(x, beta)}));
  return n.emit(OpKind::Clip, {y}, {{Attr::Min, 0.0}, {Attr::Max, 1.0}});
}
Status lower_hard_sigmoid(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const double alpha = n.float_attr("alpha", 0.2);
  return n.give(hard_sigmoid(n, alpha, n.float_attr("beta", 0.5)));
}
Status lower_hard_swish(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const Item gate, hard_sigmoid(n, 1.0 / 6.0, 0.5));
  return n.give(n.emit(OpKind::Mul, {n.in(0), gate}));
}

// x * tanh(softplus(x))
Status lower_mish(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(Item gate, n.emit(OpKind::Softplus, {n.in(0)}));
  WEFT_TRY(gate, n.emit(OpKind::Tanh, {gate}));
  return n.give(n.emit(OpKind::Mul, {n.in(0), gate}));
}

// x * sigmoid(alpha * x)
Status lower_swish(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const double alpha = n.float_attr("alpha", 1);
  Item gate = n.in(0);
  if (alpha != 1) {
    WEFT_TRY(gate, n.emit(OpKind::Mul, {gate, n.like(gate, alpha)}));
  }
  WEFT_TRY(gate, n.emit(OpKind::Sigmoid, {gate}));
  return n.give(n.emit(OpKind::Mul, {n.in(0), gate}));
}

Status lower_gelu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const std::string form = n.string_attr("approximate", "none");
  if (form != "none" && form != "tanh") return n.unsupported("approximate is '" + form.substr(0, 32) + "'");
  return n.give(n.emit(OpKind::Gelu, {n.in(0)}, {{Attr::Approximate, int64_t{form == "tanh"}}}));
}

Status lower_softsign(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(Item y, n.emit(OpKind::Abs, {n.in(0)}));
  WEFT_TRY(y, n.emit(OpKind::Add, {y, n.like(y, 1)}));
  return n.give(n.emit(OpKind::Div, {n.in(0), y}));
}

Status lower_thresholded_relu(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  WEFT_TRY(const Item above, n.emit(OpKind::Greater, {x, n.like(x, n.float_attr("alpha", 1))}));
  return n.give(n.emit(OpKind::Where, {above, x, n.like(x, 0)}));
}

Status lower_shrink(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const Item& x = n.in(0);
  const double lambda = n.float_attr("lambd", 0.5);
  const Item bias = n.like(x, n.float_attr("bias", 0));
  WEFT_TRY(const Item low, n.emit(OpKind::Less, {x, n.like(x, -lambda)}));
  WEFT_TRY(const Item high, n.emit(OpKind::Greater, {x, n.like(x, lambda)}));
  WEFT_TRY(const Item raised, n.emit(OpKind::Add, {x, bias}));
  WEFT_TRY(const Item lowered, n.emit(OpKind::Sub, {x, bias}));
  WEFT_TRY(const Item right, n.emit(OpKind::Where, {high, lowered, n.like(x, 0)}));
  return n.give(n.emit(OpKind::Where, {low, raised, right}));
}

struct DropoutForm {
  double ratio = 0.5;
  bool drops = false;
};

Result<DropoutForm> read_dropout(NodeContext& n) {
  DropoutForm form;
  if (n.opset() < 12) {  // a copy, until opset 12 said how training is marked
    form.ratio = n.float_attr("ratio", 0.5);
    return form;
  }
  if (n.has(1)) {
    if (!n.in(1).known || n.in(1).spec.element_count() != 1)
      return n.unsupported("its ratio is not a constant");
    form.ratio = to_doubles(*n.in(1).known)[0];
  }
  if (n.has(2)) {
    if (!n.in(2).known || n.in(2).spec.element_count() != 1)
      return n.unsupported("its training_mode is not a constant");
    form.drops = to_doubles(*n.in(2).known)[0] != 0;
  }
  if (!(form.ratio >= 0 && form.ratio < 1))
    return n.invalid("its ratio is " + std::to_string(form.ratio) + ", not in [0, 1)");
  return form;
}

// What the same draw keeps of ones is the mask.
Result<Item> dropout_mask(NodeContext& n, const DropoutForm& form, DType dtype, std::optional<int64_t> key) {
  const Item& x = n.in(0);
  if (!key) return n.expand(n.scalar(dtype, 1), x.shape());
  WEFT_TRY(Item mask, n.expand(n.like(x, 1), x.shape()));
  WEFT_TRY(mask, n.emit(OpKind::Dropout, {mask}, {{Attr::Ratio, form.ratio}, {Attr::Key, *key}}));
  WEFT_TRY(mask, n.emit(OpKind::Greater, {mask, n.like(mask, 0)}));
  return n.cast(mask, dtype);
}

Status lower_dropout(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY(const DropoutForm form, read_dropout(n));
  std::optional<int64_t> key;
  if (form.drops && form.ratio > 0 && n.options().training) key = n.state().draw_count++;
  if (n.wants(1)) {
    // Opset 7 to 9 return the mask in the input's type.
    const DType dtype = n.opset() < 10 ? n.in(0).dtype() : DType::Bool;
    WEFT_TRY(Item mask, dropout_mask(n, form, dtype, key));
    n.out(1, std::move(mask));
  }
  if (!key) return n.give(n.in(0));
  return n.give(n.emit(OpKind::Dropout, {n.in(0)}, {{Attr::Ratio, form.ratio}, {Attr::Key, *key}}));
}

constexpr LowerRow kActivationRows[] = {
    {"Relu", lower_relu},
    {"LeakyRelu", lower_leaky_relu},
    {"PRelu", lower_prelu},
    {"Elu", lower_elu},
    {"Selu", lower_selu},
    {"Celu", lower_celu},
    {"HardSigmoid", lower_hard_sigmoid},
    {"HardSwish", lower_hard_swish},
    {"Mish", lower_mish},
    {"Swish", lower_swish},
    {"Gelu", lower_gelu},
    {"Softsign", lower_softsign},
    {"ThresholdedRelu", lower_thresholded_relu},
    {"Shrink", lower_shrink},
    {"Dropout", lower_dropout, operands(0), operands(1, 2)},
};

}  // namespace

std::span<const LowerRow> activation_lowerings() { return kActivationRows; }

}  // namespace weft::onnx
