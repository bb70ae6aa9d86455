// Recurrent cells, step by step and row by row of the batch.
#include <algorithm>
#include <cmath>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// How a row of the batch walks through the sequence: its own steps only, in its direction.
struct Walk {
  int64_t steps, batch, hidden;
  bool reverse;
  const Wholes* lengths;  // nullptr: everyone takes every step

  bool takes(int64_t t, int64_t b) const {
    return lengths == nullptr || t < std::clamp<int64_t>((*lengths)[at(b)], 0, steps);
  }
  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  // Of a [T,B,count*hidden] value: where gate `gate` of a row starts.
  size_t place(int64_t t, int64_t b, int64_t count = 1, int64_t gate = 0) const {
    return at(((t * batch + b) * count + gate) * hidden);
  }
};

Walk walk_of(const Call& c, const Shape& sequence, const Shape& r, size_t lengths) {
  return {sequence[0], sequence[1], r[1], c.attributes.get_int(Attr::Reverse) != 0,
          c.has(lengths) ? &c.wholes(lengths) : nullptr};
}

// Row `row` of r times state.
double product_with(const Reals& r, int64_t row, const double* state, int64_t hidden) {
  double sum = 0;
  for (int64_t k = 0; k < hidden; ++k) sum += r[at(row * hidden + k)] * state[k];
  return sum;
}
// into[k] += sum over `count` rows of r, from row `first` on, of d[row] r[row, k]
void add_transposed(const Reals& r, int64_t first, const double* d, int64_t count, int64_t hidden,
                    double* into) {
  for (int64_t j = 0; j < count; ++j)
    for (int64_t k = 0; k < hidden; ++k) into[k] += d[j] * r[at((first + j) * hidden + k)];
}

Reals initial(const Call& c, size_t i, const Walk& w) {
  return c.has(i) ? c.reals(i) : Reals(at(w.batch * w.hidden), 0.0);
}
double element(const Call& c, size_t i, size_t place) { return c.has(i) ? c.reals(i)[place] : 0; }

// ---- forward ----

void lstm(const Call& c) {
  const Walk w = walk_of(c, c.shape(0), c.shape(1), 4);
  const int64_t hidden = w.hidden;
  Reals h = initial(c, 2, w), state = initial(c, 3, w);
  for (int64_t i = 0; i < w.steps; ++i) {
    const int64_t t = w.step(i);
    std::copy(h.begin(), h.end(), c.out(5).reals.begin() + t * w.batch * hidden);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      double* gates = c.out(3).reals.data() + w.place(t, b, 4);
      for (int64_t j = 0; j < 4 * hidden; ++j) {
        const double x =
            c.reals(0)[w.place(t, b, 4) + at(j)] + product_with(c.reals(1), j, h.data() + b * hidden, hidden);
        gates[j] = j < 3 * hidden ? sigmoid(x) : std::tanh(x);
      }
      for (int64_t j = 0; j < hidden; ++j) {
        double& cell = state[at(b * hidden + j)];
        cell = gates[2 * hidden + j] * cell + gates[j] * gates[3 * hidden + j];
        c.out(0).reals[w.place(t, b) + at(j)] = gates[hidden + j] * std::tanh(cell);
      }
    }
    for (int64_t b = 0; b < w.batch; ++b)
      if (w.takes(t, b))
        std::copy_n(c.out(0).reals.begin() + static_cast<int64_t>(w.place(t, b)), hidden,
                    h.begin() + b * hidden);
    std::copy(state.begin(), state.end(), c.out(4).reals.begin() + t * w.batch * hidden);
  }
  c.out(1).reals = h;
  c.out(2).reals = state;
}

void gru(const Call& c) {
  const Walk w = walk_of(c, c.shape(0), c.shape(1), 4);
  const int64_t hidden = w.hidden;
  const bool linear = c.attributes.get_int(Attr::LinearBeforeReset) != 0;
  const Reals& r = c.reals(1);
  Reals h = initial(c, 2, w);
  for (int64_t i = 0; i < w.steps; ++i) {
    const int64_t t = w.step(i);
    std::copy(h.begin(), h.end(), c.out(4).reals.begin() + t * w.batch * hidden);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      double *gates = c.out(2).reals.data() + w.place(t, b, 3),
             *inner = c.out(3).reals.data() + w.place(t, b);
      const double* x = c.reals(0).data() + w.place(t, b, 3);
      double* state = h.data() + b * hidden;
      for (int64_t j = 0; j < 2 * hidden; ++j) gates[j] = sigmoid(x[j] + product_with(r, j, state, hidden));
      for (int64_t j = 0; j < hidden; ++j)
        inner[j] = linear ? product_with(r, 2 * hidden + j, state, hidden) + element(c, 3, at(j))
                          : gates[hidden + j] * state[j];
      for (int64_t j = 0; j < hidden; ++j)
        gates[2 * hidden + j] =
            std::tanh(x[2 * hidden + j] + (linear ? gates[hidden + j] * inner[j]
                                                  : product_with(r, 2 * hidden + j, inner, hidden)));
      for (int64_t j = 0; j < hidden; ++j) {
        state[j] = (1 - gates[j]) * gates[2 * hidden + j] + gates[j] * state[j];
        c.out(0).reals[w.place(t, b) + at(j)] = state[j];
      }
    }
  }
  c.out(1).reals = h;
}

void rnn(const Call& c) {
  const Walk w = walk_of(c, c.shape(0), c.shape(1), 3);
  const bool relu = c.attributes.get_string(Attr::Activation) == "relu";
  Reals h = initial(c, 2, w);
  for (int64_t i = 0; i < w.steps; ++i) {
    const int64_t t = w.step(i);
    std::copy(h.begin(), h.end(), c.out(2).reals.begin() + t * w.batch * w.hidden);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      double *state = h.data() + b * w.hidden, *y = c.out(0).reals.data() + w.place(t, b);
      for (int64_t j = 0; j < w.hidden; ++j) {
        const double x = c.reals(0)[w.place(t, b) + at(j)] + product_with(c.reals(1), j, state, w.hidden);
        y[j] = relu ? (x <= 0 ? 0 : x) : std::tanh(x);
      }
      std::copy_n(y, w.hidden, state);
    }
  }
  c.out(1).reals = h;
}

// ---- backward: the steps in the other order, dh and dc flowing from step to step ----

void lstm_grad(const Call& c) {
  const Walk w = walk_of(c, c.shape(1), c.shape(0), 7);
  const int64_t hidden = w.hidden;
  Reals &dh = c.out(1).reals, &dc = c.out(2).reals;
  if (c.has(4)) dh = c.reals(4);
  if (c.has(5)) dc = c.reals(5);
  for (int64_t i = w.steps; i-- > 0;) {
    const int64_t t = w.step(i);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      const double *gates = c.reals(1).data() + w.place(t, b, 4), *cells = c.reals(2).data() + w.place(t, b);
      double* d = c.out(0).reals.data() + w.place(t, b, 4);
      for (int64_t j = 0; j < hidden; ++j) {
        const double in = gates[j], out = gates[hidden + j], forget = gates[2 * hidden + j],
                     g = gates[3 * hidden + j];
        const double before =
            i > 0 ? c.reals(2)[w.place(w.step(i - 1), b) + at(j)] : element(c, 6, at(b * hidden + j));
        const double dy = dh[at(b * hidden + j)] + element(c, 3, w.place(t, b) + at(j)),
                     y = std::tanh(cells[j]);
        double& dcell = dc[at(b * hidden + j)];
        dcell += dy * out * (1 - y * y);
        d[j] = dcell * g * in * (1 - in);
        d[hidden + j] = dy * y * out * (1 - out);
        d[2 * hidden + j] = dcell * before * forget * (1 - forget);
        d[3 * hidden + j] = dcell * in * (1 - g * g);
        dcell *= forget;
        dh[at(b * hidden + j)] = 0;
      }
      add_transposed(c.reals(0), 0, d, 4 * hidden, hidden, dh.data() + b * hidden);
    }
  }
}

void gru_grad(const Call& c) {
  const Walk w = walk_of(c, c.shape(1), c.shape(0), 6);
  const int64_t hidden = w.hidden;
  const bool linear = c.attributes.get_int(Attr::LinearBeforeReset) != 0;
  const Reals& r = c.reals(0);
  Reals& dh = c.out(2).reals;
  if (c.has(5)) dh = c.reals(5);
  for (int64_t i = w.steps; i-- > 0;) {
    const int64_t t = w.step(i);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      const size_t row = w.place(t, b);
      const double *gates = c.reals(1).data() + w.place(t, b, 3), *inner = c.reals(2).data() + row,
                   *before = c.reals(3).data() + row;
      double *d = c.out(0).reals.data() + w.place(t, b, 3), *dinner = c.out(1).reals.data() + row;
      double* state = dh.data() + b * hidden;
      for (int64_t j = 0; j < hidden; ++j) {
        const double z = gates[j], g = gates[2 * hidden + j];
        const double dy = state[j] + element(c, 4, row + at(j));
        d[j] = dy * (before[j] - g) * z * (1 - z);
        d[2 * hidden + j] = dy * (1 - z) * (1 - g * g);
        if (linear) dinner[j] = d[2 * hidden + j] * gates[hidden + j];
        state[j] = dy * z;
      }
      if (!linear) add_transposed(r, 2 * hidden, d + 2 * hidden, hidden, hidden, dinner);
      for (int64_t j = 0; j < hidden; ++j) {
        const double reset = gates[hidden + j];
        d[hidden + j] = (linear ? d[2 * hidden + j] * inner[j] : dinner[j] * before[j]) * reset * (1 - reset);
        if (!linear) state[j] += dinner[j] * reset;
      }
      add_transposed(r, 0, d, 2 * hidden, hidden, state);
      if (linear) add_transposed(r, 2 * hidden, dinner, hidden, hidden, state);
    }
  }
}

void rnn_grad(const Call& c) {
  const Walk w = walk_of(c, c.shape(1), c.shape(0), 4);
  const bool relu = c.attributes.get_string(Attr::Activation) == "relu";
  Reals& dh = c.out(1).reals;
  if (c.has(3)) dh = c.reals(3);
  for (int64_t i = w.steps; i-- > 0;) {
    const int64_t t = w.step(i);
    for (int64_t b = 0; b < w.batch; ++b) {
      if (!w.takes(t, b)) continue;
      const size_t row = w.place(t, b);
      double *d = c.out(0).reals.data() + row, *state = dh.data() + b * w.hidden;
      for (int64_t j = 0; j < w.hidden; ++j) {
        const double y = c.reals(1)[row + at(j)], dy = state[j] + element(c, 2, row + at(j));
        d[j] = relu ? (y > 0 ? dy : 0) : dy * (1 - y * y);
        state[j] = 0;
      }
      add_transposed(c.reals(0), 0, d, w.hidden, w.hidden, state);
    }
  }
}

}  // namespace

void run_recurrent(const Call& call) {
  // Without a batch or a hidden unit every value is empty, however many steps it claims to have.
  const Shape& sequence = call.outputs[call.kind == OpKind::GruGrad ? 1 : 0].spec.shape;
  if (sequence[1] == 0 || sequence[2] == 0) return;
  switch (call.kind) {
    case OpKind::Lstm:
      return lstm(call);
    case OpKind::LstmGrad:
      return lstm_grad(call);
    case OpKind::Gru:
      return gru(call);
    case OpKind::GruGrad:
      return gru_grad(call);
    case OpKind::Rnn:
      return rnn(call);
    case OpKind::RnnGrad:
      return rnn_grad(call);
    default:
      WEFT_CHECK_MSG(false, "not a recurrent op");
  }
}

}  // namespace weft::peer::reference
