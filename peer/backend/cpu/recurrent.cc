// Recurrent cells over a sequence: one product with packed weights a step, the gates' functions while its
// results are in the first-level cache.
#include "peer/backend/cpu/recurrent.h"

namespace weft::peer::cpu {

void pack_forward(const Team& team, const LoopTable& loops, const Sequence& s, const float* r,
                  float* packed) {
  const int64_t size = s.hidden * s.panel;
  team.ranges(s.panels() * s.gates, rows_grain(size), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i / s.gates * s.panel, gate = i % s.gates;
      const int64_t count = std::min(s.panel, s.hidden - first);
      float* target = packed + i * size;
      if (count < s.panel) copy_or_zero(target, nullptr, size);
      loops.transpose(r + (gate * s.hidden + first) * s.hidden, s.hidden, target, s.panel, count, s.hidden);
    }
  });
}

void pack_backward(const Team& team, const Sequence& s, const float* r, float* packed) {
  const int64_t rows = s.gates * s.hidden;
  team.ranges(s.panels(), rows_grain(rows * s.panel), [&](int64_t begin, int64_t end) {
    for (int64_t u = begin; u < end; ++u) {
      const int64_t first = u * s.panel, count = std::min(s.panel, s.hidden - first);
      float* target = packed + u * rows * s.panel;
      if (count < s.panel) copy_or_zero(target, nullptr, rows * s.panel);
      for (int64_t k = 0; k < rows; ++k) copy_or_zero(target + k * s.panel, r + k * s.hidden + first, count);
    }
  });
}

void multiply_forward(const LoopTable& loops, const Sequence& s, const CellPiece& piece, const float* packed,
                      const float* state, int64_t first_gate, int64_t count, CellProducts& products) {
  const int64_t rows = piece.b_end - piece.b_begin;
  if (state == nullptr) {
    copy_or_zero(products.values, nullptr, rows * count * s.panel);
    return;
  }
  for (int64_t g = 0; g < count; ++g)
    loops.multiply_panel(state + piece.b_begin * s.hidden, s.hidden, rows, s.hidden,
                         packed + (piece.number * s.gates + first_gate + g) * s.hidden * s.panel,
                         products.values + g * s.panel, count * s.panel, 0);
}

void hand_on(const Sequence& s, const CellPiece& piece, int64_t t, const Lengths& lengths,
             const float* before, float* y, float* next) {
  for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
    const int64_t at = b * s.hidden + piece.first;
    const bool takes = lengths.takes(t, b);
    if (!takes) copy_or_zero(y + at, nullptr, piece.count);
    copy_or_zero(next + at, takes ? y + at : before + at, piece.count);
  }
}

void multiply_back(const LoopTable& loops, const Sequence& s, const CellPiece& piece, const float* packed,
                   const float* d, int64_t stride, int64_t first_row, int64_t depth, float* dh) {
  CellProducts products;
  const int64_t rows = piece.b_end - piece.b_begin;
  loops.multiply_panel(d + piece.b_begin * stride, stride, rows, depth,
                       packed + (piece.number * s.gates * s.hidden + first_row) * s.panel, products.values,
                       s.panel, 0);
  for (int64_t i = 0; i < rows; ++i)
    loops.reduce_into[kReduceSum](dh + (piece.b_begin + i) * s.hidden + piece.first,
                                  products.values + i * s.panel, piece.count);
}

namespace {

using dag::Attr;
using dag::OpKind;

// ---- LSTM ----

KernelResult make_lstm(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(0), 4);
  const int x = request.input_slot(0), r = request.input_slot(1), h0 = request.input_slot(2),
            c0 = request.input_slot(3), len = request.input_slot(4);
  int out[6];
  for (size_t i = 0; i < 6; ++i) out[i] = request.output_slot(i);
  const bool wide = is_wide(request, 4);
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *y = call.out<float>(out[0]), *before = call.out<float>(out[5]),
          *cells = call.out<float>(out[4]), *gates = call.out<float>(out[3]);
    const Lengths lengths{call.in<std::byte>(len), wide, s.steps};
    pack_forward(team, loops, s, call.in<float>(r), packed);
    // The initial c lies where the last one will, until the first step has been taken.
    float* c_first = call.out<float>(out[2]);
    copy_or_zero(c_first, call.in<float>(c0), s.state_elements());
    copy_or_zero(before + s.state(s.step(0), 0), call.in<float>(h0), s.state_elements());
    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.step(i);
      const float *state = before + s.state(t, 0),
                  *c_before = i == 0 ? c_first : cells + s.state(s.step(i - 1), 0);
      float* next = i + 1 < s.steps ? before + s.state(s.step(i + 1), 0) : call.out<float>(out[1]);
      cell_pieces(team, s, 8 * s.hidden, [&](const CellPiece& piece) {
        CellProducts products;
        multiply_forward(loops, s, piece, packed, i == 0 && h0 < 0 ? nullptr : state, 0, 4, products);
        for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
          const int64_t at = b * s.hidden + piece.first;
          float* c = cells + s.state(t, 0) + at;
          if (!lengths.takes(t, b)) {
            zero_gates(gates + s.row(t, b), s, piece, 4);
            copy_or_zero(c, c_before + at, piece.count);
            continue;
          }
          CellArgs args{};
          args.count = piece.count, args.stride = s.hidden, args.product_stride = s.panel;
          args.x = call.in<float>(x) + s.row(t, b) + piece.first;
          args.product = products.values + (b - piece.b_begin) * 4 * s.panel;
          args.c_before = c_before + at;
          args.gates = gates + s.row(t, b) + piece.first;
          args.c = c;
          args.h = y + s.state(t, 0) + at;
          loops.lstm_cell(args);
        }
        hand_on(s, piece, t, lengths, state, y + s.state(t, 0), next);
      });
    }
    copy_or_zero(c_first, cells + s.state(s.step(s.steps - 1), 0), s.state_elements());
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run, float_bytes(packed_elements(s)));
}

KernelResult make_lstm_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(1), 4);
  int in[8], out[3];
  for (size_t i = 0; i < 8; ++i) in[i] = request.input_slot(i);
  for (size_t i = 0; i < 3; ++i) out[i] = request.output_slot(i);
  const bool wide = is_wide(request, 7);
  const int64_t packed_bytes = float_bytes(packed_elements(s));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *zeros = call.scratch<float>(packed_bytes),
          *d = call.out<float>(out[0]), *dh = call.out<float>(out[1]), *dc = call.out<float>(out[2]);
    const float *dy = call.in<float>(in[3]), *c0 = call.in<float>(in[6]), *gates = call.in<float>(in[1]),
                *cells = call.in<float>(in[2]);
    const Lengths lengths{call.in<std::byte>(in[7]), wide, s.steps};
    pack_backward(team, s, call.in<float>(in[0]), packed);
    copy_or_zero(zeros, nullptr, s.state_elements());
    copy_or_zero(dh, call.in<float>(in[4]), s.state_elements());
    copy_or_zero(dc, call.in<float>(in[5]), s.state_elements());
    for (int64_t i = s.steps; i-- > -1;) {  // at -1 only the first step's product is left
      cell_pieces(team, s, 8 * s.hidden, [&](const CellPiece& piece) {
        if (i + 1 < s.steps)
          multiply_back(loops, s, piece, packed, d + s.row(s.step(i + 1), 0), 4 * s.hidden, 0, 4 * s.hidden,
                        dh);
        if (i < 0) return;
        const int64_t t = s.step(i);
        const float* c_before = i > 0 ? cells + s.state(s.step(i - 1), 0) : c0 != nullptr ? c0 : zeros;
        for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
          const int64_t at = b * s.hidden + piece.first;
          if (!lengths.takes(t, b)) {
            zero_gates(d + s.row(t, b), s, piece, 4);
            continue;
          }
          CellGradArgs args{};
          args.count = piece.count, args.stride = s.hidden;
          args.gates = gates + s.row(t, b) + piece.first;
          args.c = cells + s.state(t, 0) + at;
          args.c_before = c_before + at;
          args.dy = dy == nullptr ? zeros + at : dy + s.state(t, 0) + at;
          args.d = d + s.row(t, b) + piece.first;
          args.dh = dh + at;
          args.dc = dc + at;
          loops.lstm_cell_grad(args);
        }
      });
    }
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run,
                      packed_bytes + float_bytes(s.state_elements()));
}

// ---- plain cells ----

KernelResult make_rnn(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(0), 1);
  const int x = request.input_slot(0), r = request.input_slot(1), h0 = request.input_slot(2),
            len = request.input_slot(3);
  const int out[3] = {request.output_slot(0), request.output_slot(1), request.output_slot(2)};
  const bool wide = is_wide(request, 3), relu = request.attributes().get_string(Attr::Activation) == "relu";
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *y = call.out<float>(out[0]), *before = call.out<float>(out[2]);
    const Lengths lengths{call.in<std::byte>(len), wide, s.steps};
    pack_forward(team, loops, s, call.in<float>(r), packed);
    copy_or_zero(before + s.state(s.step(0), 0), call.in<float>(h0), s.state_elements());
    for (int64_t i = 0; i < s.steps; ++i) {
      const int64_t t = s.step(i);
      const float* state = before + s.state(t, 0);
      float* next = i + 1 < s.steps ? before + s.state(s.step(i + 1), 0) : call.out<float>(out[1]);
      cell_pieces(team, s, 2 * s.hidden, [&](const CellPiece& piece) {
        CellProducts products;
        multiply_forward(loops, s, piece, packed, i == 0 && h0 < 0 ? nullptr : state, 0, 1, products);
        for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
          CellArgs args{};
          args.count = piece.count, args.relu = relu;
          args.x = call.in<float>(x) + s.row(t, b) + piece.first;
          args.product = products.values + (b - piece.b_begin) * s.panel;
          args.h = y + s.state(t, b) + piece.first;
          loops.rnn_cell(args);
        }
        hand_on(s, piece, t, lengths, state, y + s.state(t, 0), next);
      });
    }
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run, float_bytes(packed_elements(s)));
}

KernelResult make_rnn_grad(const KernelRequest& request) {
  const Sequence s = sequence_of(request, request.in_shape(1), 1);
  int in[5];
  for (size_t i = 0; i < 5; ++i) in[i] = request.input_slot(i);
  const int dx = request.output_slot(0), dh0 = request.output_slot(1);
  const bool wide = is_wide(request, 4), relu = request.attributes().get_string(Attr::Activation) == "relu";
  const int64_t packed_bytes = float_bytes(packed_elements(s));
  const auto run = [=, &team = request.team, &loops = request.loops](const Call& call) -> Status {
    float *packed = call.scratch<float>(), *zeros = call.scratch<float>(packed_bytes),
          *d = call.out<float>(dx), *dh = call.out<float>(dh0);
    const float *dy = call.in<float>(in[2]), *y = call.in<float>(in[1]);
    const Lengths lengths{call.in<std::byte>(in[4]), wide, s.steps};
    pack_backward(team, s, call.in<float>(in[0]), packed);
    copy_or_zero(zeros, nullptr, s.state_elements());
    copy_or_zero(dh, call.in<float>(in[3]), s.state_elements());
    for (int64_t i = s.steps; i-- > -1;) {  // at -1 only the first step's product is left
      cell_pieces(team, s, 2 * s.hidden, [&](const CellPiece& piece) {
        if (i + 1 < s.steps)
          multiply_back(loops, s, piece, packed, d + s.row(s.step(i + 1), 0), s.hidden, 0, s.hidden, dh);
        if (i < 0) return;
        const int64_t t = s.step(i);
        for (int64_t b = piece.b_begin; b < piece.b_end; ++b) {
          const int64_t at = s.state(t, b) + piece.first;
          if (!lengths.takes(t, b)) {
            zero_gates(d + s.row(t, b), s, piece, 1);
            continue;
          }
          CellGradArgs args{};
          args.count = piece.count, args.relu = relu;
          args.h = y + at;
          args.dy = dy == nullptr ? zeros : dy + at;
          args.d = d + at;
          args.dh = dh + b * s.hidden + piece.first;
          loops.rnn_cell_grad(args);
        }
      });
    }
    return {};
  };
  return request.make(std::string("cell by cell ") + request.loops.isa, run,
                      packed_bytes + float_bytes(s.state_elements()));
}

}  // namespace

KernelResult make_recurrent(const KernelRequest& request) {
  if (!request.is_f32(request.out(0))) return request.decline();
  switch (request.op.kind) {
    case OpKind::Lstm:
      return make_lstm(request);
    case OpKind::LstmGrad:
      return make_lstm_grad(request);
    case OpKind::Gru:
      return make_gru(request);
    case OpKind::GruGrad:
      return make_gru_grad(request);
    case OpKind::Rnn:
      return make_rnn(request);
    case OpKind::RnnGrad:
      return make_rnn_grad(request);
    default:
      return request.decline();
  }
}

}  // namespace weft::peer::cpu
