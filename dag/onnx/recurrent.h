// Internal to dag/onnx: one direction of an ONNX LSTM, GRU or RNN, brought into one form.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "dag/onnx/lowering.h"

namespace weft::onnx {

// A gate's function by ONNX's name, in lower case.
struct Activation {
  std::string name;
  double alpha = 0, beta = 0;
};

// Sizes and what both directions share.
struct RecurrentForm {
  int64_t gates = 1;  // 4, 3, 1: LSTM, GRU, RNN
  int64_t steps = 0, batch = 0, hidden = 0, directions = 1;
  bool batch_first = false;    // layout 1
  bool reverse_first = false;  // direction "reverse"
  bool linear_before_reset = false, input_forget = false;
  std::optional<double> clip;   // of what goes into a gate's function
  std::optional<Item> lengths;  // [B]; absent: everyone takes every step
};

struct RecurrentDirection {
  bool reverse = false;
  Item x;                             // [T,B,G*H]: the input's part of the gates, with biases
  Item r;                             // [G*H,H]
  std::optional<Item> h0, c0;         // [B,H]; absent: zeros
  std::optional<Item> reset_bias;     // [H]: within GRU's reset, when that comes after the product
  std::optional<Item> peepholes;      // [3*H]: of i, o, f
  std::vector<Activation> functions;  // LSTM 3, GRU 2, RNN 1
};

struct RecurrentResults {
  Item y;                 // [T,B,H]
  Item h;                 // [B,H]
  std::optional<Item> c;  // [B,H], of an LSTM
};

// The forms that Lstm, Gru and Rnn do not know, as elementwise ops step by step. Unsupported beyond a budget.
Result<RecurrentResults> unroll(NodeContext& node, const RecurrentForm& form,
                                const RecurrentDirection& direction);

}  // namespace weft::onnx
