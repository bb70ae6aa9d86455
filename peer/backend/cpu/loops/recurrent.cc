// A step of a recurrent cell: rows of the state times a panel of packed weights, and the gates' functions.
#include "peer/backend/cpu/loops/math.h"
#include "peer/backend/cpu/loops/vector.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

// Rows are read where they lie, so a tile has no more of them than there are registers for their addresses.
constexpr int64_t kRows = kLanes == 16 ? 8 : kLanes == 8 ? 6 : 4;
constexpr int64_t kColumns = 2 * kLanes;

template <int64_t Rows>
void tile(const float* a, int64_t a_stride, int64_t depth, const float* panel, float* c, int64_t c_stride,
          bool accumulate) {
  Vector sum[Rows][2];
  const float* row[Rows];
#pragma GCC unroll 16
  for (int64_t i = 0; i < Rows; ++i) {
    sum[i][0] = Vector{};
    sum[i][1] = Vector{};
    row[i] = a + i * a_stride;
  }
#pragma GCC unroll 2
  for (int64_t p = 0; p < depth; ++p) {
    const Vector b0 = load(panel + p * kColumns), b1 = load(panel + p * kColumns + kLanes);
#pragma GCC unroll 16
    for (int64_t i = 0; i < Rows; ++i) {
      const float x = row[i][p];
      sum[i][0] += x * b0;
      sum[i][1] += x * b1;
    }
  }
#pragma GCC unroll 16
  for (int64_t i = 0; i < Rows; ++i) {
    float* target = c + i * c_stride;
    store(target, accumulate ? load(target) + sum[i][0] : sum[i][0]);
    store(target + kLanes, accumulate ? load(target + kLanes) + sum[i][1] : sum[i][1]);
  }
}

using Tile = void (*)(const float*, int64_t, int64_t, const float*, float*, int64_t, bool);
constexpr Tile kTiles[] = {tile<1>, tile<2>, tile<3>, tile<4>, tile<5>, tile<6>, tile<7>, tile<8>};

void multiply_panel(const float* a, int64_t a_stride, int64_t m, int64_t depth, const float* panel, float* c,
                    int64_t c_stride, int accumulate) {
  // Tiles of nearly equal height: a low one at the end would have too few sums to hide an addition behind.
  const int64_t tiles = (m + kRows - 1) / kRows;
  for (int64_t i = 0, done = 0; i < tiles; ++i) {
    const int64_t end = m * (i + 1) / tiles;
    kTiles[end - done - 1](a + done * a_stride, a_stride, depth, panel, c + done * c_stride, c_stride,
                           accumulate != 0);
    done = end;
  }
}

void lstm_cell(const CellArgs& args) {
  const float *x = args.x, *product = args.product, *c_before = args.c_before;
  float *gates = args.gates, *c = args.c, *h = args.h;
  const int64_t s = args.stride, ps = args.product_stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float in = sigmoid_(x[j] + product[j]);
    const float out = sigmoid_(x[s + j] + product[ps + j]);
    const float forget = sigmoid_(x[2 * s + j] + product[2 * ps + j]);
    const float g = tanh_(x[3 * s + j] + product[3 * ps + j]);
    const float cell = forget * c_before[j] + in * g;
    gates[j] = in;
    gates[s + j] = out;
    gates[2 * s + j] = forget;
    gates[3 * s + j] = g;
    c[j] = cell;
    h[j] = out * tanh_(cell);
  }
}

void lstm_cell_grad(const CellGradArgs& args) {
  const float *gates = args.gates, *c_before = args.c_before, *c = args.c, *dy = args.dy;
  float *d = args.d, *dh = args.dh, *dc = args.dc;
  const int64_t s = args.stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float in = gates[j], out = gates[s + j], forget = gates[2 * s + j], g = gates[3 * s + j];
    const float y = tanh_(c[j]), from_y = dh[j] + dy[j];
    const float cell = dc[j] + from_y * out * (1.0f - y * y);
    d[j] = cell * g * in * (1.0f - in);
    d[s + j] = from_y * y * out * (1.0f - out);
    d[2 * s + j] = cell * c_before[j] * forget * (1.0f - forget);
    d[3 * s + j] = cell * in * (1.0f - g * g);
    dc[j] = cell * forget;
    dh[j] = 0.0f;
  }
}

void gru_linear_cell(const CellArgs& args) {
  const float *x = args.x, *product = args.product, *before = args.before, *bias = args.bias;
  float *gates = args.gates, *inner = args.inner, *h = args.h;
  const int64_t s = args.stride, ps = args.product_stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float z = sigmoid_(x[j] + product[j]);
    const float reset = sigmoid_(x[s + j] + product[ps + j]);
    const float q = product[2 * ps + j] + bias[j];
    const float g = tanh_(x[2 * s + j] + reset * q);
    gates[j] = z;
    gates[s + j] = reset;
    gates[2 * s + j] = g;
    inner[j] = q;
    h[j] = (1.0f - z) * g + z * before[j];
  }
}

void gru_linear_cell_grad(const CellGradArgs& args) {
  const float *gates = args.gates, *inner = args.inner, *before = args.before, *dy = args.dy;
  float *d = args.d, *dh = args.dh, *dinner = args.dinner;
  const int64_t s = args.stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float z = gates[j], reset = gates[s + j], g = gates[2 * s + j], from_y = dh[j] + dy[j];
    const float dg = from_y * (1.0f - z) * (1.0f - g * g);
    d[j] = from_y * (before[j] - g) * z * (1.0f - z);
    d[s + j] = dg * inner[j] * reset * (1.0f - reset);
    d[2 * s + j] = dg;
    dinner[j] = dg * reset;
    dh[j] = from_y * z;
  }
}

void gru_open_cell(const CellArgs& args) {
  const float *x = args.x, *product = args.product, *before = args.before;
  float *gates = args.gates, *inner = args.inner;
  const int64_t s = args.stride, ps = args.product_stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float reset = sigmoid_(x[s + j] + product[ps + j]);
    gates[j] = sigmoid_(x[j] + product[j]);
    gates[s + j] = reset;
    inner[j] = reset * before[j];
  }
}

void gru_close_cell(const CellArgs& args) {
  const float *x = args.x, *product = args.product, *before = args.before;
  float *gates = args.gates, *h = args.h;
  const int64_t s = args.stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float z = gates[j], g = tanh_(x[2 * s + j] + product[j]);
    gates[2 * s + j] = g;
    h[j] = (1.0f - z) * g + z * before[j];
  }
}

void gru_close_cell_grad(const CellGradArgs& args) {
  const float *gates = args.gates, *before = args.before, *dy = args.dy;
  float *d = args.d, *dh = args.dh;
  const int64_t s = args.stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float z = gates[j], g = gates[2 * s + j], from_y = dh[j] + dy[j];
    d[j] = from_y * (before[j] - g) * z * (1.0f - z);
    d[2 * s + j] = from_y * (1.0f - z) * (1.0f - g * g);
    dh[j] = from_y * z;
  }
}

// dinner: the product that the reset state's cotangent is.
void gru_open_cell_grad(const CellGradArgs& args) {
  const float *gates = args.gates, *before = args.before, *dinner = args.dinner;
  float *d = args.d, *dh = args.dh;
  const int64_t s = args.stride, count = args.count;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float reset = gates[s + j];
    d[s + j] = dinner[j] * before[j] * reset * (1.0f - reset);
    dh[j] += dinner[j] * reset;
  }
}

void rnn_cell(const CellArgs& args) {
  const float *x = args.x, *product = args.product;
  float* h = args.h;
  const int64_t count = args.count;
  if (args.relu != 0) {
#pragma omp simd
    for (int64_t j = 0; j < count; ++j) {
      const float sum = x[j] + product[j];
      h[j] = sum <= 0.0f ? 0.0f : sum;
    }
    return;
  }
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) h[j] = tanh_(x[j] + product[j]);
}

void rnn_cell_grad(const CellGradArgs& args) {
  const float *y = args.h, *dy = args.dy;
  float *d = args.d, *dh = args.dh;
  const int64_t count = args.count;
  const bool relu = args.relu != 0;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float from_y = dh[j] + dy[j];
    d[j] = relu ? (y[j] > 0.0f ? from_y : 0.0f) : from_y * (1.0f - y[j] * y[j]);
    dh[j] = 0.0f;
  }
}

}  // namespace

void add_recurrent_loops(LoopTable& t) {
  t.panel_columns = static_cast<int>(kColumns);
  t.multiply_panel = multiply_panel;
  t.lstm_cell = lstm_cell;
  t.lstm_cell_grad = lstm_cell_grad;
  t.gru_linear_cell = gru_linear_cell;
  t.gru_linear_cell_grad = gru_linear_cell_grad;
  t.gru_open_cell = gru_open_cell;
  t.gru_close_cell = gru_close_cell;
  t.gru_close_cell_grad = gru_close_cell_grad;
  t.gru_open_cell_grad = gru_open_cell_grad;
  t.rnn_cell = rnn_cell;
  t.rnn_cell_grad = rnn_cell_grad;
}

}  // namespace weft::peer::cpu::WEFT_ISA
