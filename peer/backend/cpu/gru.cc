// GRU in its two forms. With the reset after the product (PyTorch's) a step is one product; with the reset
// before it, the hidden gate's product waits for the reset gate of all units.
#include "peer/backend/cpu/recurrent.h"

namespace weft::peer::cpu {
namespace {

using dag::Attr;

struct GruForward {
  Sequence s;
  Lengths lengths;
  const float *x, *bias, *packed;
  float *y, *gates, *inner;
  bool first_is_zero;  // no initial state

  CellArgs args(const CellPiece& piece, int64_t t, int64_t b, const float* state, const float* product,
                int64_t products_a_row) const {
    CellArgs made{};
    made.count = piece.count, made.stride = s.hidden, made.product_stride = s.panel;
    made.x = x + s.row(t, b) + piece.first;
    made.product = product + (b - piece.b_begin) * products_a_row * s.panel;
    made.before = state + b * s.hidden + piece.first;
    made.bias = bias + piece.first;
    made.gates = gates + s.row(t, b) + piece.first;
    made.inner = inner + s.state(t, b) + piece.first;
    made.h = y + s.state(t, b) + piece.first;
    return made;
  }
  void skip(const CellPiece& piece, int64_t t, int64_t b) const {
    zero_gates(gates + s.row(t, b), s, piece, 3);
    zero_gates(inner + s.state(t, b), s, piece, 1);
  }

  void step_linear(const Team& team, const LoopTable& loops, int64_t i, const float* state,
                   float* next) const {
    const int64_t t = s.step(i);
    cell_pieces(team, s, 6 * s.hidden, [&](const CellPiece& piece) {
      CellProducts products;
      multiply_forward(loops, s, piece, packed, i == 0 && first_is_zero ? nullptr : state, 0, 3, products);
      for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
        if (lengths.takes(t, b))
          loops.gru_linear_cell(args(piece, t, b, state, products.values, 3));
        else
          skip(piece, t, b);
      }
      hand_on(s, piece, t, lengths, state, y + s.state(t, 0), next);
    });
  }

  void step_reset_first(const Team& team, const LoopTable& loops, int64_t i, const float* state,
                        float* next) const {
    const int64_t t = s.step(i);
    const bool is_zero = i == 0 && first_is_zero;
    cell_pieces(team, s, 4 * s.hidden, [&](const CellPiece& piece) {
      CellProducts products;
      multiply_forward(loops, s, piece, packed, is_zero ? nullptr : state, 0, 2, products);
      for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
        if (lengths.takes(t, b))
          loops.gru_open_cell(args(piece, t, b, state, products.values, 2));
        else
          skip(piece, t, b);
      }
    });
    cell_pieces(team, s, 2 * s.hidden, [&](const CellPiece& piece) {
      CellProducts products;
      multiply_forward(loops, s, piece, packed, is_zero ? nullptr : inner + s.state(t, 0), 2, 1, products);
      for (int64_t b = piece.b_begin; b < piece.b_end; ++b)
        if (lengths.takes(t, b)) loops.gru_close_cell(args(piece, t, b, state, products.values, 1));
      hand_on(s, piece, t, lengths, state, y + s.state(t, 0), next);
    });
  }
};

struct GruBackward {
  Sequence s;
  Lengths lengths;
  const float *dy, *gates, *inner, *before, *packed, *zeros;
  float *d, *dinner, *dh;

  CellGradArgs args(const CellPiece& piece, int64_t t, int64_t b) const {
    CellGradArgs made{};
    const int64_t at = s.state(t, b) + piece.first;
    made.count = piece.count, made.stride = s.hidden;
    made.gates = gates + s.row(t, b) + piece.first;
    made.inner = inner + at;
    made.before = before + at;
    made.dy = dy == nullptr ? zeros : dy + at;
    made.d = d + s.row(t, b) + piece.first;
    made.dinner = dinner + at;
    made.dh = dh + b * s.hidden + piece.first;
    return made;
  }
  void skip(const CellPiece& piece, int64_t t, int64_t b) const {
    zero_gates(d + s.row(t, b), s, piece, 3);
    zero_gates(dinner + s.state(t, b), s, piece, 1);
  }
  // What the first two gates of step i send through the weights to the state before it.
  void add_product(const LoopTable& loops, const CellPiece& piece, int64_t i) const {
    multiply_back(loops, s, piece, packed, d + s.row(s.step(i), 0), 3 * s.hidden, 0, 2 * s.hidden, dh);
  }

  void step_linear(const Team& team, const LoopTable& loops, int64_t i) const {
    cell_pieces(team, s, 6 * s.hidden, [&](const CellPiece& piece) {
      if (i + 1 < s.steps) {
        add_product(loops, piece, i + 1);
        multiply_back(loops, s, piece, packed, dinner + s.state(s.step(i + 1), 0), s.hidden, 2 * s.hidden,
                      s.hidden, dh);
      }
      for (int64_t b = piece.b_begin; b < piece.b_end && i >= 0; ++b) {
        if (lengths.takes(s.step(i), b))
          loops.gru_linear_cell_grad(args(piece, s.step(i), b));
        else
          skip(piece, s.step(i), b);
      }
    });
  }

  void step_reset_first(const Team& team, const LoopTable& loops, int64_t i) const {
    cell_pieces(team, s, 4 * s.hidden, [&](const CellPiece& piece) {
      if (i + 1 < s.steps) add_product(loops, piece, i + 1);
      for (int64_t b = piece.b_begin; b < piece.b_end && i >= 0; ++b) {
        if (lengths.takes(s.step(i), b))
          loops.gru_close_cell_grad(args(piece, s.step(i), b));
        else
          skip(piece, s.step(i), b);
      }
    });
    if (i < 0) return;
    const int64_t t = s.step(i);
    cell_pieces(team, s, 2 * s.hidden, [&](const CellPiece& piece) {
      for (int64_t b = piece.b_begin; b < piece.b_end; ++b) zero_gates(dinner + s.state(t, b), s, piece, 1);
      multiply_back(loops, s, piece, packed, d + s.row(t, 0) + 2 * s.hidden, 3 * s.hidden, 2 * s.hidden,
                    s.hidden, dinner + s.state(t, 0));
      for (int64_t b = piece.b_begin; b < piece.b_end; ++b)
        if (lengths.takes(t, b)) loops.gru_open_cell_grad(args(piece, t, b));
    });
  }
};

}  // namespace

KernelResult make_gru(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(0), 3);
  int in[5], out[5];
  for (size_t i = 0; i < 5; ++i) in[i] = request.input_slot(i), out[i] = request.output_slot(i);
  const bool wide = is_wide(request, 4), linear = request.attributes().get_int(Attr::LinearBeforeReset) != 0;
  const int64_t packed_bytes = float_bytes(packed_elements(s));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *no_bias = call.scratch<float>(packed_bytes),
          *before = call.out<float>(out[4]);
    pack_forward(team, loops, s, call.in<float>(in[1]), packed);
    copy_or_zero(no_bias, nullptr, s.hidden);
    copy_or_zero(before + s.state(s.step(0), 0), call.in<float>(in[2]), s.state_elements());
    const float* bias = call.in<float>(in[3]);
    const GruForward way{.s = s,
                         .lengths = {call.in<std::byte>(in[4]), wide, s.steps},
                         .x = call.in<float>(in[0]),
                         .bias = bias != nullptr ? bias : no_bias,
                         .packed = packed,
                         .y = call.out<float>(out[0]),
                         .gates = call.out<float>(out[2]),
                         .inner = call.out<float>(out[3]),
                         .first_is_zero = in[2] < 0};
    for (int64_t i = 0; i < s.steps; ++i) {
      const float* state = before + s.state(s.step(i), 0);
      float* next = i + 1 < s.steps ? before + s.state(s.step(i + 1), 0) : call.out<float>(out[1]);
      if (linear)
        way.step_linear(team, loops, i, state, next);
      else
        way.step_reset_first(team, loops, i, state, next);
    }
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run,
                      packed_bytes + float_bytes(s.hidden));
}

KernelResult make_gru_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(1), 3);
  int in[7], out[3];
  for (size_t i = 0; i < 7; ++i) in[i] = request.input_slot(i);
  for (size_t i = 0; i < 3; ++i) out[i] = request.output_slot(i);
  const bool wide = is_wide(request, 6), linear = request.attributes().get_int(Attr::LinearBeforeReset) != 0;
  const int64_t packed_bytes = float_bytes(packed_elements(s));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *zeros = call.scratch<float>(packed_bytes),
          *dh = call.out<float>(out[2]);
    pack_backward(team, s, call.in<float>(in[0]), packed);
    copy_or_zero(zeros, nullptr, s.hidden);
    copy_or_zero(dh, call.in<float>(in[5]), s.state_elements());
    const GruBackward way{.s = s,
                          .lengths = {call.in<std::byte>(in[6]), wide, s.steps},
                          .dy = call.in<float>(in[4]),
                          .gates = call.in<float>(in[1]),
                          .inner = call.in<float>(in[2]),
                          .before = call.in<float>(in[3]),
                          .packed = packed,
                          .zeros = zeros,
                          .d = call.out<float>(out[0]),
                          .dinner = call.out<float>(out[1]),
                          .dh = dh};
    for (int64_t i = s.steps; i-- > -1;) {  // at -1 only the first step's product is left
      if (linear)
        way.step_linear(team, loops, i);
      else
        way.step_reset_first(team, loops, i);
    }
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run,
                      packed_bytes + float_bytes(s.hidden));
}

}  // namespace weft::peer::cpu
