// Recurrent cells over a sequence. The input's part of the gates, x W^T + b, is an ordinary product outside;
// an op runs the rest over time. Gates lie side by side in ONNX's order. What a weight's gradient needs
// besides (the state before each step) is a result of the forward op, so that it too is a product outside.
#include "dag/ops/common.h"

namespace weft::dag {
namespace {

using namespace ops;

// x[T,B,G*H], r[G*H,H]
struct Extents {
  int64_t steps, batch, hidden;
  Shape sequence() const { return {steps, batch, hidden}; }
  Shape state() const { return {batch, hidden}; }
  Shape gates(int64_t count) const { return {steps, batch, count * hidden}; }
};

// From operand `x` that is [T,B,G*H], and r.
Result<Extents> extents_of(const ShapeContext& c, size_t x, size_t r, int64_t gates) {
  WEFT_TRY_STATUS(need_float(c, x));
  WEFT_TRY_STATUS(need_same_dtype(c, x, r));
  if (c.in(x).rank() != 3) return refuse_operand(c, x, "rank 3: steps, batch, gates");
  if (c.in(r).rank() != 2) return refuse_operand(c, r, "rank 2: gates, hidden");
  const Extents e{c.in(x).shape[0], c.in(x).shape[1], c.in(r).shape[1]};
  if (e.hidden > kElementCountMax / 4) return refuse_operand(c, r, "a smaller hidden size");
  if (c.in(r).shape[0] != gates * e.hidden)
    return refuse_operand(c, r, std::to_string(gates) + " times as many rows as columns");
  return e;
}
Status need_lengths(const ShapeContext& c, size_t i, const Extents& e) {
  if (!c.has(i)) return {};
  WEFT_TRY_STATUS(need_index(c, i));
  return need_spec(c, i, c.in(i).dtype, {e.batch});
}
// All specs within bounds.
Specs checked_all(DType dtype, std::vector<Shape> shapes) {
  std::vector<TensorSpec> specs;
  for (Shape& shape : shapes) {
    WEFT_TRY(TensorSpec spec, checked(dtype, std::move(shape)));
    specs.push_back(std::move(spec));
  }
  return specs;
}

Status need_activation(const ShapeContext& c) {
  const std::string& name = c.attributes.get_string(Attr::Activation);
  if (name != "tanh" && name != "relu")
    return refuse("attribute activation is '" + name + "', want tanh or relu");
  return {};
}

// ---- shape rules ----

Specs infer_lstm(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 0, 1, 4));
  const DType dtype = c.in(0).dtype;
  WEFT_TRY_STATUS(need_spec(c, 0, dtype, e.gates(4)));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.state()));
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, e.state()));
  WEFT_TRY_STATUS(need_lengths(c, 4, e));
  return checked_all(dtype, {e.sequence(), e.state(), e.state(), e.gates(4), e.sequence(), e.sequence()});
}

Specs infer_lstm_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 3));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 1, 0, 4));
  const DType dtype = c.in(1).dtype;
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, e.sequence()));
  WEFT_TRY_STATUS(need_spec(c, 4, dtype, e.state()));
  WEFT_TRY_STATUS(need_spec(c, 5, dtype, e.state()));
  WEFT_TRY_STATUS(need_spec(c, 6, dtype, e.state()));
  WEFT_TRY_STATUS(need_lengths(c, 7, e));
  WEFT_TRY_STATUS(need_spec(c, 1, dtype, e.gates(4)));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.sequence()));
  return checked_all(dtype, {e.gates(4), e.state(), e.state()});
}

Specs infer_gru(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY_STATUS(int_in(c, Attr::LinearBeforeReset, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 0, 1, 3));
  const DType dtype = c.in(0).dtype;
  WEFT_TRY_STATUS(need_spec(c, 0, dtype, e.gates(3)));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.state()));
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, {e.hidden}));
  if (c.has(3) && c.attributes.get_int(Attr::LinearBeforeReset) == 0)
    return refuse_operand(c, 3, "none: without linear_before_reset the bias is part of operand 0");
  WEFT_TRY_STATUS(need_lengths(c, 4, e));
  return checked_all(dtype, {e.sequence(), e.state(), e.gates(3), e.sequence(), e.sequence()});
}

Specs infer_gru_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 4));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY_STATUS(int_in(c, Attr::LinearBeforeReset, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 1, 0, 3));
  const DType dtype = c.in(1).dtype;
  WEFT_TRY_STATUS(need_spec(c, 4, dtype, e.sequence()));
  WEFT_TRY_STATUS(need_spec(c, 5, dtype, e.state()));
  WEFT_TRY_STATUS(need_lengths(c, 6, e));
  WEFT_TRY_STATUS(need_spec(c, 1, dtype, e.gates(3)));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.sequence()));
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, e.sequence()));
  return checked_all(dtype, {e.gates(3), e.sequence(), e.state()});
}

Specs infer_rnn(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_activation(c));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 0, 1, 1));
  const DType dtype = c.in(0).dtype;
  WEFT_TRY_STATUS(need_spec(c, 0, dtype, e.sequence()));
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.state()));
  WEFT_TRY_STATUS(need_lengths(c, 3, e));
  return checked_all(dtype, {e.sequence(), e.state(), e.sequence()});
}

Specs infer_rnn_grad(const ShapeContext& c) {
  WEFT_TRY_STATUS(need_operands(c, 2));
  WEFT_TRY_STATUS(need_activation(c));
  WEFT_TRY_STATUS(int_in(c, Attr::Reverse, 0, 1));
  WEFT_TRY(const Extents e, extents_of(c, 1, 0, 1));
  const DType dtype = c.in(1).dtype;
  WEFT_TRY_STATUS(need_spec(c, 2, dtype, e.sequence()));
  WEFT_TRY_STATUS(need_spec(c, 3, dtype, e.state()));
  WEFT_TRY_STATUS(need_lengths(c, 4, e));
  WEFT_TRY_STATUS(need_spec(c, 1, dtype, e.sequence()));
  return checked_all(dtype, {e.sequence(), e.state()});
}

// ---- vjps ----

ValueId operand(VjpContext& c, size_t i) { return c.has_in(i) ? c.in(i) : ValueId{}; }

// The sum over steps and batch of d^T s, for d[T,B,N] and s[T,B,H]: one product over all rows.
Expr over_rows(VjpContext& c, ValueId d, ValueId s) {
  const auto as_rows = [&](ValueId v) {
    const Shape& shape = c.spec(v).shape;
    return reshape(Expr{&c, v}, {shape[0] * shape[1], shape[2]});
  };
  return apply(OpKind::MatMul, as_rows(d), as_rows(s),
               {{Attr::TransA, int64_t{1}}, {Attr::TransB, int64_t{0}}});
}

void lstm_vjp(VjpContext& c) {
  const auto grads = c.builder().add_all(OpKind::LstmGrad,
                                         {c.in(1), c.out(3), c.out(4), c.cotangent(0), c.cotangent(1),
                                          c.cotangent(2), operand(c, 3), operand(c, 4)},
                                         {{Attr::Reverse, c.attributes().get_int(Attr::Reverse)}});
  c.set(0, grads[0]);
  if (c.wants(1)) give(c, 1, over_rows(c, grads[0], c.out(5)));
  if (c.has_in(2)) c.set(2, grads[1]);
  if (c.has_in(3)) c.set(3, grads[2]);
}

// `count` of the gates of d[T,B,G*H], from gate `first` on.
ValueId gates_of(VjpContext& c, ValueId d, int64_t first, int64_t count, int64_t hidden) {
  Shape sizes = c.spec(d).shape;
  sizes[2] = count * hidden;
  return c.add(
      OpKind::Slice, {d},
      {{Attr::Starts, Ints{0, 0, first * hidden}}, {Attr::Sizes, sizes}, {Attr::Steps, Ints{1, 1, 1}}});
}

void gru_vjp(VjpContext& c) {
  const int64_t hidden = c.spec(c.in(1)).shape[1];
  const bool linear = c.attributes().get_int(Attr::LinearBeforeReset) != 0;
  const ValueId before = c.out(4), inner = c.out(3);
  const auto grads = c.builder().add_all(
      OpKind::GruGrad, {c.in(1), c.out(2), inner, before, c.cotangent(0), c.cotangent(1), operand(c, 4)},
      {{Attr::Reverse, c.attributes().get_int(Attr::Reverse)}, {Attr::LinearBeforeReset, int64_t{linear}}});
  c.set(0, grads[0]);
  if (c.wants(1)) {
    const Expr gates = over_rows(c, gates_of(c, grads[0], 0, 2, hidden), before);
    const Expr hidden_part =
        linear ? over_rows(c, grads[1], before) : over_rows(c, gates_of(c, grads[0], 2, 1, hidden), inner);
    c.set(1, c.add(OpKind::Concat, {gates.id, hidden_part.id}, {{Attr::Axis, int64_t{0}}}));
  }
  if (c.has_in(2)) c.set(2, grads[2]);
  if (c.has_in(3)) c.set(3, c.sum_to(grads[1], c.in(3)));
}

void rnn_vjp(VjpContext& c) {
  const auto grads =
      c.builder().add_all(OpKind::RnnGrad, {c.in(1), c.out(0), c.cotangent(0), c.cotangent(1), operand(c, 3)},
                          {{Attr::Reverse, c.attributes().get_int(Attr::Reverse)},
                           {Attr::Activation, c.attributes().get_string(Attr::Activation)}});
  c.set(0, grads[0]);
  if (c.wants(1)) give(c, 1, over_rows(c, grads[0], c.out(2)));
  if (c.has_in(2)) c.set(2, grads[1]);
}

// ---- rows ----

// A product with r for every row of the sequence; `kGates` of operand kR's columns each.
template <size_t kSequence, size_t kR>
FlopCount recurrent_flops(const ShapeContext& c, std::span<const TensorSpec>) {
  return saturating_product({2, c.in(kSequence).element_count(), c.in(kR).shape[1]});
}

OpRow row(OpKind kind, int inputs_min, int inputs_max, Specs (*infer)(const ShapeContext&),
          void (*vjp)(VjpContext&), FlopCount (*flops)(const ShapeContext&, std::span<const TensorSpec>),
          std::string_view about) {
  return {.kind = kind,
          .family = Family::Recurrent,
          .inputs_min = inputs_min,
          .inputs_max = inputs_max,
          .differentiability = vjp ? Differentiability::Differentiable : Differentiability::Refused,
          .infer = infer,
          .vjp = vjp,
          .flops = flops,
          .work = Work::MatMul,
          .about = about};
}

}  // namespace

void add_recurrent_ops(OpTable& table) {
  table.add(row(OpKind::Lstm, 2, 5, infer_lstm, lstm_vjp, recurrent_flops<0, 1>,
                "x[T,B,4H] (the input's part of gates i,o,f,g), r[4H,H], h0[B,H]?, c0[B,H]?, lengths[B] "
                "I32/I64? -> y[T,B,H], h, c (last states), gates (after their functions), cells (c after "
                "each step), before (h before each step); reverse: from the length backwards; y is 0 beyond "
                "a length, which counts from 0 to T"));
  table.add(row(OpKind::LstmGrad, 3, 8, infer_lstm_grad, nullptr, recurrent_flops<1, 0>,
                "r, gates, cells, dy?, dh?, dc?, c0?, lengths? -> dx, dh0, dc0; reverse"));
  table.add(
      row(OpKind::Gru, 2, 5, infer_gru, gru_vjp, recurrent_flops<0, 1>,
          "x[T,B,3H] (gates z,r,h), r[3H,H], h0?, b[H]? (within the reset), lengths? -> y, h, gates, "
          "inner[T,B,H] (linear_before_reset: h R^T + b of gate h; else the reset h), before; reverse"));
  table.add(row(OpKind::GruGrad, 4, 7, infer_gru_grad, nullptr, recurrent_flops<1, 0>,
                "r, gates, inner, before, dy?, dh?, lengths? -> dx, dinner, dh0; reverse, "
                "linear_before_reset"));
  table.add(row(OpKind::Rnn, 2, 4, infer_rnn, rnn_vjp, recurrent_flops<0, 1>,
                "x[T,B,H], r[H,H], h0?, lengths? -> y, h, before; activation: tanh, relu; reverse"));
  table.add(row(OpKind::RnnGrad, 2, 5, infer_rnn_grad, nullptr, recurrent_flops<1, 0>,
                "r, y, dy?, dh?, lengths? -> dx, dh0; activation, reverse"));
}

}  // namespace weft::dag
