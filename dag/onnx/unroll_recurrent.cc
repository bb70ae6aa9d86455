// Recurrent cells step by step, for the forms that are too rare for an op: other functions, clipping,
// peepholes, coupled gates.
#include "dag/onnx/recurrent.h"

namespace weft::onnx {
namespace {

constexpr int64_t kStepsTimesGatesMax = 2048;  // some ten ops each

Result<Item> scaled(NodeContext& n, const Item& x, double factor, double offset) {
  WEFT_TRY(const Item y, n.emit(OpKind::Mul, {x, n.like(x, factor)}));
  return n.emit(OpKind::Add, {y, n.like(x, offset)});
}

// The part of x above `threshold`; elsewhere `other`.
Result<Item> above(NodeContext& n, const Item& x, double threshold, const Item& other) {
  WEFT_TRY(const Item is_above, n.emit(OpKind::Greater, {x, n.like(x, threshold)}));
  return n.emit(OpKind::Where, {is_above, x, other});
}

Result<Item> elu(NodeContext& n, const Item& x, double alpha) {
  WEFT_TRY(const Item low, n.emit(OpKind::Min, {x, n.like(x, 0)}));  // exp of the rest could overflow
  WEFT_TRY(const Item exp, n.emit(OpKind::Exp, {low}));
  WEFT_TRY(const Item curve, scaled(n, exp, alpha, -alpha));
  return above(n, x, 0, curve);
}

Result<Item> activate(NodeContext& n, const RecurrentForm& form, const Activation& f, Item x) {
  if (form.clip) {
    WEFT_TRY(x, n.emit(OpKind::Clip, {x}, {{Attr::Min, -*form.clip}, {Attr::Max, *form.clip}}));
  }
  if (f.name == "sigmoid") return n.emit(OpKind::Sigmoid, {x});
  if (f.name == "tanh") return n.emit(OpKind::Tanh, {x});
  if (f.name == "relu") return n.emit(OpKind::Relu, {x});
  if (f.name == "softplus") return n.emit(OpKind::Softplus, {x});
  if (f.name == "affine") return scaled(n, x, f.alpha, f.beta);
  if (f.name == "elu") return elu(n, x, f.alpha);
  if (f.name == "thresholdedrelu") return above(n, x, f.alpha, n.like(x, 0));
  if (f.name == "leakyrelu") {
    WEFT_TRY(const Item slope, n.emit(OpKind::Mul, {x, n.like(x, f.alpha)}));
    return above(n, x, 0, slope);
  }
  if (f.name == "scaledtanh") {
    WEFT_TRY(const Item inner, n.emit(OpKind::Mul, {x, n.like(x, f.beta)}));
    WEFT_TRY(const Item y, n.emit(OpKind::Tanh, {inner}));
    return n.emit(OpKind::Mul, {y, n.like(x, f.alpha)});
  }
  if (f.name == "hardsigmoid") {
    WEFT_TRY(const Item y, scaled(n, x, f.alpha, f.beta));
    return n.emit(OpKind::Clip, {y}, {{Attr::Min, 0.0}, {Attr::Max, 1.0}});
  }
  if (f.name == "softsign") {
    WEFT_TRY(const Item size, n.emit(OpKind::Abs, {x}));
    WEFT_TRY(const Item below, n.emit(OpKind::Add, {size, n.like(x, 1)}));
    return n.emit(OpKind::Div, {x, below});
  }
  return n.unsupported("activation '" + f.name + "'");
}

// One direction on its way through the sequence.
class Unrolling {
 public:
  Unrolling(NodeContext& node, const RecurrentForm& form, const RecurrentDirection& direction)
      : n_(node), form_(form), direction_(direction) {}

  Result<RecurrentResults> run() {
    WEFT_TRY_STATUS(start());
    Items outputs(static_cast<size_t>(form_.steps));
    for (int64_t i = 0; i < form_.steps; ++i) {
      const int64_t t = direction_.reverse ? form_.steps - 1 - i : i;
      WEFT_TRY(const Item y, step(t));
      WEFT_TRY(outputs[static_cast<size_t>(t)], n_.reshape(y, {1, form_.batch, form_.hidden}));
    }
    RecurrentResults results{{}, h_, std::nullopt};
    if (form_.gates == 4) results.c = c_;
    WEFT_TRY(results.y, n_.emit(OpKind::Concat, std::move(outputs), {{Attr::Axis, int64_t{0}}}));
    return results;
  }

 private:
  Status start() {
    if (form_.steps == 0) return n_.unsupported("an empty sequence in this form");
    if (form_.steps * form_.gates > kStepsTimesGatesMax)
      return n_.unsupported(
          "its form (functions, clip, peepholes or coupled gates) is computed step by step, "
          "and " +
          std::to_string(form_.steps) + " steps are too many; at most " +
          std::to_string(kStepsTimesGatesMax / form_.gates) + " are");
    const Shape state{form_.batch, form_.hidden};
    WEFT_TRY(const Item zeros, n_.expand(n_.like(direction_.x, 0), state));
    h_ = direction_.h0 ? *direction_.h0 : zeros;
    c_ = direction_.c0 ? *direction_.c0 : zeros;
    if (form_.lengths) {
      WEFT_TRY(const Item column, n_.reshape(*form_.lengths, {form_.batch, 1}));
      WEFT_TRY(lengths_, n_.cast(column, DType::I64));
    }
    return {};
  }

  // Takes a step where the row takes it; what the sequence gets there.
  Result<Item> step(int64_t t) {
    WEFT_TRY(const Item row, n_.slice(direction_.x, 0, t, 1));
    WEFT_TRY(x_, n_.reshape(row, {form_.batch, form_.gates * form_.hidden}));
    const Item h = h_, c = c_;
    WEFT_TRY_STATUS(form_.gates == 4 ? lstm() : form_.gates == 3 ? gru() : rnn());
    if (!form_.lengths) return h_;
    WEFT_TRY(const Item takes,
             n_.emit(OpKind::Greater, {lengths_, n_.scalar(DType::I64, static_cast<double>(t))}));
    const Item made = h_;
    WEFT_TRY(h_, n_.emit(OpKind::Where, {takes, made, h}));
    WEFT_TRY(c_, n_.emit(OpKind::Where, {takes, c_, c}));
    return n_.emit(OpKind::Where, {takes, made, n_.like(made, 0)});
  }

  Result<Item> gate(const Item& all, int64_t g, int64_t count = 1) {
    return n_.slice(all, 1, g * form_.hidden, count * form_.hidden);
  }
  // `state` times the rows of `count` gates of r, from gate g on.
  Result<Item> recurrent(const Item& state, int64_t g, int64_t count) {
    WEFT_TRY(const Item r, n_.slice(direction_.r, 0, g * form_.hidden, count * form_.hidden));
    return n_.emit(OpKind::MatMul, {state, r}, {{Attr::TransA, int64_t{0}}, {Attr::TransB, int64_t{1}}});
  }
  Result<Item> function(size_t i, const Item& x) { return activate(n_, form_, direction_.functions[i], x); }
  Result<Item> add(const Item& a, const Item& b) { return n_.emit(OpKind::Add, {a, b}); }
  Result<Item> multiply(const Item& a, const Item& b) { return n_.emit(OpKind::Mul, {a, b}); }

  // Gate g's sum, and what its peephole sees of `cell`; `hole`: its place among i, o, f.
  Result<Item> peeped(const Item& all, int64_t g, int64_t hole, const Item& cell) {
    WEFT_TRY(Item sum, gate(all, g));
    if (!direction_.peepholes) return sum;
    WEFT_TRY(const Item weights, n_.slice(*direction_.peepholes, 0, hole * form_.hidden, form_.hidden));
    WEFT_TRY(const Item seen, multiply(cell, weights));
    return add(sum, seen);
  }

  Status lstm() {
    WEFT_TRY(const Item product, recurrent(h_, 0, 4));
    WEFT_TRY(const Item all, add(x_, product));
    WEFT_TRY(const Item i_sum, peeped(all, 0, 0, c_));
    WEFT_TRY(const Item i, function(0, i_sum));
    Item f;
    if (form_.input_forget) {
      WEFT_TRY(f, n_.emit(OpKind::Sub, {n_.like(i, 1), i}));
    } else {
      WEFT_TRY(const Item f_sum, peeped(all, 2, 2, c_));
      WEFT_TRY(f, function(0, f_sum));
    }
    WEFT_TRY(const Item g_sum, gate(all, 3));
    WEFT_TRY(const Item g, function(1, g_sum));
    WEFT_TRY(const Item kept, multiply(f, c_));
    WEFT_TRY(const Item taken, multiply(i, g));
    WEFT_TRY(c_, add(kept, taken));
    WEFT_TRY(const Item o_sum, peeped(all, 1, 1, c_));
    WEFT_TRY(const Item o, function(0, o_sum));
    WEFT_TRY(const Item shown, function(2, c_));
    WEFT_TRY(h_, multiply(o, shown));
    return {};
  }

  Status gru() {
    WEFT_TRY(const Item product, recurrent(h_, 0, 2));
    WEFT_TRY(const Item x_open, gate(x_, 0, 2));
    WEFT_TRY(const Item open, add(x_open, product));
    WEFT_TRY(const Item z_sum, gate(open, 0));
    WEFT_TRY(const Item r_sum, gate(open, 1));
    WEFT_TRY(const Item z, function(0, z_sum));
    WEFT_TRY(const Item r, function(0, r_sum));
    Item inner;
    if (form_.linear_before_reset) {
      WEFT_TRY(inner, recurrent(h_, 2, 1));
      if (direction_.reset_bias) {
        WEFT_TRY(inner, add(inner, *direction_.reset_bias));
      }
      WEFT_TRY(inner, multiply(r, inner));
    } else {
      WEFT_TRY(const Item reset, multiply(r, h_));
      WEFT_TRY(inner, recurrent(reset, 2, 1));
    }
    WEFT_TRY(const Item x_hidden, gate(x_, 2));
    WEFT_TRY(const Item g_sum, add(x_hidden, inner));
    WEFT_TRY(const Item g, function(1, g_sum));
    WEFT_TRY(const Item rest, n_.emit(OpKind::Sub, {n_.like(z, 1), z}));
    WEFT_TRY(const Item taken, multiply(rest, g));
    WEFT_TRY(const Item kept, multiply(z, h_));
    WEFT_TRY(h_, add(taken, kept));
    return {};
  }

  Status rnn() {
    WEFT_TRY(const Item product, recurrent(h_, 0, 1));
    WEFT_TRY(const Item sum, add(x_, product));
    WEFT_TRY(h_, function(0, sum));
    return {};
  }

  NodeContext& n_;
  const RecurrentForm& form_;
  const RecurrentDirection& direction_;
  Item x_, h_, c_, lengths_;
};

}  // namespace

Result<RecurrentResults> unroll(NodeContext& node, const RecurrentForm& form,
                                const RecurrentDirection& direction) {
  return Unrolling(node, form, direction).run();
}

}  // namespace weft::onnx
