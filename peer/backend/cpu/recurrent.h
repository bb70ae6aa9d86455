// What the recurrent cells share: packed weights, and the way of all rows of the batch through the sequence.
// A step is cut into pieces, some hidden units of some rows each, whose bits do not depend on the cut.
#pragma once

#include <algorithm>
#include <cstring>

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// Each row of the batch takes the steps below its length.
struct Lengths {
  const std::byte* data = nullptr;  // absent: every row takes every step
  bool wide = false;                // I64, not I32
  int64_t steps = 0;

  bool takes(int64_t t, int64_t b) const {
    if (data == nullptr) return true;
    const int64_t length =
        wide ? reinterpret_cast<const int64_t*>(data)[b] : reinterpret_cast<const int32_t*>(data)[b];
    return t < length;
  }
};

// Of a call: where row b of step t lies in values [T,B,gates*H].
struct Sequence {
  int64_t steps, batch, hidden, gates;
  bool reverse;
  int64_t panel;  // hidden units of a piece

  int64_t step(int64_t i) const { return reverse ? steps - 1 - i : i; }
  int64_t state(int64_t t, int64_t b) const { return (t * batch + b) * hidden; }
  int64_t row(int64_t t, int64_t b) const { return (t * batch + b) * hidden * gates; }
  int64_t state_elements() const { return batch * hidden; }
  int64_t panels() const { return (hidden + panel - 1) / panel; }
};

// x[T,B,G*H] is the value that has the gates.
inline Sequence sequence_of(const KernelRequest& request, const dag::Shape& gates_shape, int64_t gates) {
  return {gates_shape[0],
          gates_shape[1],
          gates_shape[2] / gates,
          gates,
          request.attributes().get_int(dag::Attr::Reverse) != 0,
          request.loops.panel_columns};
}
inline bool is_wide(const KernelRequest& request, size_t operand) {
  return request.has(operand) && request.in(operand).spec.dtype == dag::DType::I64;
}
inline int64_t float_bytes(int64_t elements) {
  return align_up(elements * static_cast<int64_t>(sizeof(float)));
}

// The hidden units [first, first + count) of rows [b_begin, b_end).
struct CellPiece {
  int64_t number, first, count, b_begin, b_end;
};
inline constexpr int64_t kCellRows = 32;  // at most, of a piece

// Calls f(piece) for all pieces of a step in which each hidden unit of a row takes `flops`.
template <typename F>
void cell_pieces(const Team& team, const Sequence& s, int64_t flops, const F& f) {
  const int64_t blocks = (s.batch + kCellRows - 1) / kCellRows, rows = (s.batch + blocks - 1) / blocks;
  constexpr int64_t kFlopsAThread = 1 << 19;
  const int64_t grain = std::max<int64_t>(1, kFlopsAThread / std::max<int64_t>(1, rows * s.panel * flops));
  team.ranges(s.panels() * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t number = i / blocks, b = i % blocks * rows;
      f(CellPiece{number, number * s.panel, std::min(s.panel, s.hidden - number * s.panel), b,
                  std::min(s.batch, b + rows)});
    }
  });
}

// r[G*H,H] for the way forward: panel (u, g) is gate g of the units of piece u, [H, panel].
void pack_forward(const Team& team, const LoopTable& loops, const Sequence& s, const float* r, float* packed);
// For the way back: panel u is columns of r, [G*H, panel].
void pack_backward(const Team& team, const Sequence& s, const float* r, float* packed);
inline int64_t packed_elements(const Sequence& s) { return s.panels() * s.gates * s.hidden * s.panel; }

// A piece's products, [rows, gates * panel].
struct CellProducts {
  alignas(64) float values[kCellRows * 4 * 32];
};

// products = state rows times gates [first_gate, first_gate + count), or zeros when the state is null.
void multiply_forward(const LoopTable& loops, const Sequence& s, const CellPiece& piece, const float* packed,
                      const float* state, int64_t first_gate, int64_t count, CellProducts& products);

// What the step forward hands on: rows that take it show h and keep it; others show zeros and keep what they
// had. `before`, `next`: states before this step and the next.
void hand_on(const Sequence& s, const CellPiece& piece, int64_t t, const Lengths& lengths,
             const float* before, float* y, float* next);

// dh += d[B, depth] (rows `stride` apart) times the rows [first_row, first_row + depth) of r.
void multiply_back(const LoopTable& loops, const Sequence& s, const CellPiece& piece, const float* packed,
                   const float* d, int64_t stride, int64_t first_row, int64_t depth, float* dh);

inline void copy_or_zero(float* target, const float* source, int64_t count) {
  if (source == nullptr)
    std::memset(target, 0, static_cast<size_t>(count) * sizeof(float));
  else
    std::memcpy(target, source, static_cast<size_t>(count) * sizeof(float));
}
// Gates or states of a row that does not take the step.
inline void zero_gates(float* row, const Sequence& s, const CellPiece& piece, int64_t gates) {
  for (int64_t g = 0; g < gates; ++g) copy_or_zero(row + g * s.hidden + piece.first, nullptr, piece.count);
}

KernelResult make_gru(const KernelRequest& request);       // gru.cc
KernelResult make_gru_grad(const KernelRequest& request);  // gru.cc

}  // namespace weft::peer::cpu
