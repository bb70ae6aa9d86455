// One step of a recurrent cell, for all of the batch: what stands between two products with the recurrent
// weights. Gates lie side by side in ONNX's order (dag/ops/recurrent.cc). Slices of a step are [batch,
// hidden] or [batch, gates * hidden]; an absent operand counts as zeros.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

struct Cells {
  int64_t batch, hidden;
  int64_t step;                 // a row whose length is at most this does not take it
  Array<const int32_t> narrow;  // lengths, either; or neither: every row takes every step
  Array<const int64_t> wide;
};

// ---- forward: `product` is the state before the step with the weights. `next`: the state behind the step,
// which is the one before it where the row does not take it.

struct LstmCell {
  Cells cells;
  Array<const float> x, product, state, c_before;
  Array<float> gates, c, y, next;
};
extern const EntryOf<LstmCell> k_lstm_cell;

// linear_before_reset.
struct GruCell {
  Cells cells;
  Array<const float> x, product, bias, state;
  Array<float> gates, inner, y, next;
};
extern const EntryOf<GruCell> k_gru_cell;
// Without: the first two gates by `product`, and the reset state, whose product the third one takes.
struct GruGates {
  Cells cells;
  Array<const float> x, product, state;
  Array<float> gates, inner;
};
extern const EntryOf<GruGates> k_gru_gates;
struct GruHidden {
  Cells cells;
  Array<const float> x, product, state;
  Array<float> gates, y, next;
};
extern const EntryOf<GruHidden> k_gru_hidden;

struct RnnCell {
  Cells cells;
  Array<const float> x, product, state;
  Array<float> y, next;
  int32_t relu;
};
extern const EntryOf<RnnCell> k_rnn_cell;

// ---- backward: `dh` is what came to the state behind the step but for `product`, which is added first: the
// later step's gates with the weights. Left in it is what goes to the state before the step past the weights.

struct LstmCellGrad {
  Cells cells;
  Array<const float> gates, c, c_before, dy, product;
  Array<float> d, dh, dc;
};
extern const EntryOf<LstmCellGrad> k_lstm_cell_grad;

// linear_before_reset. `both`: of the gates z and r and of `inner`, for the product.
struct GruCellGrad {
  Cells cells;
  Array<const float> gates, inner, before, dy, product;
  Array<float> d, dinner, both, dh;
};
extern const EntryOf<GruCellGrad> k_gru_cell_grad;
// Without: gates z and h, and then, with `dinner` made of `dhidden`, the reset.
struct GruHiddenGrad {
  Cells cells;
  Array<const float> gates, before, dy, product;
  Array<float> d, dhidden, dh;
};
extern const EntryOf<GruHiddenGrad> k_gru_hidden_grad;
struct GruResetGrad {
  Cells cells;
  Array<const float> gates, before, dinner;
  Array<float> d, both, dh;  // both: of z and r
};
extern const EntryOf<GruResetGrad> k_gru_reset_grad;

struct RnnCellGrad {
  Cells cells;
  Array<const float> y, dy, product;
  Array<float> d, dh;
  int32_t relu;
};
extern const EntryOf<RnnCellGrad> k_rnn_cell_grad;

// dh += product: behind the first step.
struct AddProduct {
  Array<const float> product;
  Array<float> dh;
};
extern const EntryOf<AddProduct> k_add_product;

}  // namespace weft::peer::cuda
