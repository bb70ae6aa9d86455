#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/math.cuh"
#include "peer/backend/cuda/kernels/recurrent.h"

namespace weft::peer::cuda {
namespace {

// One unit of one row.
struct Cell {
  int64_t row, unit, at;  // at: of a [batch, hidden] slice
  int64_t hidden;
  bool takes;

  // Of a slice of `gates` a unit.
  __device__ __forceinline__ int64_t gate(int64_t gates, int64_t which) const {
    return (row * gates + which) * hidden + unit;
  }
};

template <typename Function>
__device__ __forceinline__ void for_each_cell(const Cells& cells, Function function) {
  const int64_t count = cells.batch * cells.hidden, stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const int64_t row = i / cells.hidden;
    bool takes = true;
    if (cells.narrow.present()) takes = cells.step < cells.narrow[row];
    if (cells.wide.present()) takes = cells.step < cells.wide[row];
    function(Cell{row, i - row * cells.hidden, i, cells.hidden, takes});
  }
}

__device__ __forceinline__ float or_zero(const Array<const float>& array, int64_t i) {
  return array.present() ? array[i] : 0.0f;
}
__device__ __forceinline__ float slope_of_sigmoid(float y) { return y * (1.0f - y); }
__device__ __forceinline__ float slope_of_tanh(float y) { return 1.0f - y * y; }

}  // namespace

// ---- forward ----

__global__ void __launch_bounds__(256) lstm_cell(LstmCell p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float c_before = or_zero(p.c_before, cell.at);
    if (!cell.takes) {
      for (int64_t g = 0; g < 4; ++g) p.gates[cell.gate(4, g)] = 0.0f;
      p.c[cell.at] = c_before;
      p.y[cell.at] = 0.0f;
      p.next[cell.at] = p.state[cell.at];
      return;
    }
    const auto sum = [&](int64_t g) { return p.x[cell.gate(4, g)] + or_zero(p.product, cell.gate(4, g)); };
    const float in = math::sigmoid(sum(0)), out = math::sigmoid(sum(1)), forget = math::sigmoid(sum(2)),
                candidate = math::tanh(sum(3));
    const float c = forget * c_before + in * candidate, h = out * math::tanh(c);
    p.gates[cell.gate(4, 0)] = in, p.gates[cell.gate(4, 1)] = out;
    p.gates[cell.gate(4, 2)] = forget, p.gates[cell.gate(4, 3)] = candidate;
    p.c[cell.at] = c;
    p.y[cell.at] = h;
    p.next[cell.at] = h;
  });
}
WEFT_KERNEL_ENTRY(lstm_cell, LstmCell)

__global__ void __launch_bounds__(256) gru_cell(GruCell p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float state = p.state[cell.at];
    if (!cell.takes) {
      for (int64_t g = 0; g < 3; ++g) p.gates[cell.gate(3, g)] = 0.0f;
      p.inner[cell.at] = 0.0f;
      p.y[cell.at] = 0.0f;
      p.next[cell.at] = state;
      return;
    }
    const auto product = [&](int64_t g) { return or_zero(p.product, cell.gate(3, g)); };
    const float update = math::sigmoid(p.x[cell.gate(3, 0)] + product(0)),
                reset = math::sigmoid(p.x[cell.gate(3, 1)] + product(1)),
                inner = product(2) + or_zero(p.bias, cell.unit);
    const float candidate = math::tanh(p.x[cell.gate(3, 2)] + reset * inner);
    const float h = (1.0f - update) * candidate + update * state;
    p.gates[cell.gate(3, 0)] = update, p.gates[cell.gate(3, 1)] = reset;
    p.gates[cell.gate(3, 2)] = candidate;
    p.inner[cell.at] = inner;
    p.y[cell.at] = h;
    p.next[cell.at] = h;
  });
}
WEFT_KERNEL_ENTRY(gru_cell, GruCell)

__global__ void __launch_bounds__(256) gru_gates(GruGates p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    float update = 0.0f, reset = 0.0f, inner = 0.0f;
    if (cell.takes) {
      update = math::sigmoid(p.x[cell.gate(3, 0)] + or_zero(p.product, cell.gate(2, 0)));
      reset = math::sigmoid(p.x[cell.gate(3, 1)] + or_zero(p.product, cell.gate(2, 1)));
      inner = reset * p.state[cell.at];
    }
    p.gates[cell.gate(3, 0)] = update, p.gates[cell.gate(3, 1)] = reset;
    p.inner[cell.at] = inner;
  });
}
WEFT_KERNEL_ENTRY(gru_gates, GruGates)

__global__ void __launch_bounds__(256) gru_hidden(GruHidden p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float state = p.state[cell.at];
    float candidate = 0.0f, y = 0.0f, next = state;
    if (cell.takes) {
      const float update = p.gates[cell.gate(3, 0)];
      candidate = math::tanh(p.x[cell.gate(3, 2)] + or_zero(p.product, cell.at));
      y = next = (1.0f - update) * candidate + update * state;
    }
    p.gates[cell.gate(3, 2)] = candidate;
    p.y[cell.at] = y;
    p.next[cell.at] = next;
  });
}
WEFT_KERNEL_ENTRY(gru_hidden, GruHidden)

__global__ void __launch_bounds__(256) rnn_cell(RnnCell p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    float y = 0.0f, next = 0.0f;
    if (cell.takes) {
      const float x = p.x[cell.at] + or_zero(p.product, cell.at);
      y = next = p.relu != 0 ? math::relu(x) : math::tanh(x);
    } else {
      next = p.state[cell.at];
    }
    p.y[cell.at] = y;
    p.next[cell.at] = next;
  });
}
WEFT_KERNEL_ENTRY(rnn_cell, RnnCell)

// ---- backward ----

__global__ void __launch_bounds__(256) lstm_cell_grad(LstmCellGrad p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float dh = p.dh[cell.at] + or_zero(p.product, cell.at);
    if (!cell.takes) {
      for (int64_t g = 0; g < 4; ++g) p.d[cell.gate(4, g)] = 0.0f;
      p.dh[cell.at] = dh;
      return;
    }
    const float in = p.gates[cell.gate(4, 0)], out = p.gates[cell.gate(4, 1)],
                forget = p.gates[cell.gate(4, 2)], candidate = p.gates[cell.gate(4, 3)];
    const float dy = dh + or_zero(p.dy, cell.at), y = math::tanh(p.c[cell.at]);
    const float dc = p.dc[cell.at] + dy * out * slope_of_tanh(y);
    p.d[cell.gate(4, 0)] = dc * candidate * slope_of_sigmoid(in);
    p.d[cell.gate(4, 1)] = dy * y * slope_of_sigmoid(out);
    p.d[cell.gate(4, 2)] = dc * or_zero(p.c_before, cell.at) * slope_of_sigmoid(forget);
    p.d[cell.gate(4, 3)] = dc * in * slope_of_tanh(candidate);
    p.dc[cell.at] = dc * forget;
    p.dh[cell.at] = 0.0f;
  });
}
WEFT_KERNEL_ENTRY(lstm_cell_grad, LstmCellGrad)

__global__ void __launch_bounds__(256) gru_cell_grad(GruCellGrad p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float dh = p.dh[cell.at] + or_zero(p.product, cell.at);
    float dupdate = 0.0f, dreset = 0.0f, dcandidate = 0.0f, dinner = 0.0f, left = dh;
    if (cell.takes) {
      const float update = p.gates[cell.gate(3, 0)], reset = p.gates[cell.gate(3, 1)],
                  candidate = p.gates[cell.gate(3, 2)];
      const float dy = dh + or_zero(p.dy, cell.at);
      dupdate = dy * (p.before[cell.at] - candidate) * slope_of_sigmoid(update);
      dcandidate = dy * (1.0f - update) * slope_of_tanh(candidate);
      dinner = dcandidate * reset;
      dreset = dcandidate * p.inner[cell.at] * slope_of_sigmoid(reset);
      left = dy * update;
    }
    p.d[cell.gate(3, 0)] = dupdate, p.d[cell.gate(3, 1)] = dreset, p.d[cell.gate(3, 2)] = dcandidate;
    p.both[cell.gate(3, 0)] = dupdate, p.both[cell.gate(3, 1)] = dreset, p.both[cell.gate(3, 2)] = dinner;
    p.dinner[cell.at] = dinner;
    p.dh[cell.at] = left;
  });
}
WEFT_KERNEL_ENTRY(gru_cell_grad, GruCellGrad)

__global__ void __launch_bounds__(256) gru_hidden_grad(GruHiddenGrad p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float dh = p.dh[cell.at] + or_zero(p.product, cell.at);
    float dupdate = 0.0f, dcandidate = 0.0f, left = dh;
    if (cell.takes) {
      const float update = p.gates[cell.gate(3, 0)], candidate = p.gates[cell.gate(3, 2)];
      const float dy = dh + or_zero(p.dy, cell.at);
      dupdate = dy * (p.before[cell.at] - candidate) * slope_of_sigmoid(update);
      dcandidate = dy * (1.0f - update) * slope_of_tanh(candidate);
      left = dy * update;
    }
    p.d[cell.gate(3, 0)] = dupdate, p.d[cell.gate(3, 2)] = dcandidate;
    p.dhidden[cell.at] = dcandidate;
    p.dh[cell.at] = left;
  });
}
WEFT_KERNEL_ENTRY(gru_hidden_grad, GruHiddenGrad)

__global__ void __launch_bounds__(256) gru_reset_grad(GruResetGrad p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    float dreset = 0.0f;
    if (cell.takes) {
      const float reset = p.gates[cell.gate(3, 1)], dinner = p.dinner[cell.at];
      dreset = dinner * p.before[cell.at] * slope_of_sigmoid(reset);
      p.dh[cell.at] = p.dh[cell.at] + dinner * reset;
    }
    p.d[cell.gate(3, 1)] = dreset;
    p.both[cell.gate(2, 0)] = p.d[cell.gate(3, 0)];
    p.both[cell.gate(2, 1)] = dreset;
  });
}
WEFT_KERNEL_ENTRY(gru_reset_grad, GruResetGrad)

__global__ void __launch_bounds__(256) rnn_cell_grad(RnnCellGrad p) {
  for_each_cell(p.cells, [&](const Cell& cell) {
    const float dh = p.dh[cell.at] + or_zero(p.product, cell.at);
    float d = 0.0f;
    if (cell.takes) {
      const float y = p.y[cell.at], dy = dh + or_zero(p.dy, cell.at);
      d = p.relu == 0 ? dy * slope_of_tanh(y) : y > 0.0f ? dy : 0.0f;
    }
    p.d[cell.at] = d;
    p.dh[cell.at] = cell.takes ? 0.0f : dh;
  });
}
WEFT_KERNEL_ENTRY(rnn_cell_grad, RnnCellGrad)

__global__ void __launch_bounds__(256) add_product(AddProduct p) {
  const int64_t stride = int64_t{gridDim.x} * blockDim.x;
  for (int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < p.dh.count; i += stride)
    p.dh[i] = p.dh[i] + p.product[i];
}
WEFT_KERNEL_ENTRY(add_product, AddProduct)

}  // namespace weft::peer::cuda
