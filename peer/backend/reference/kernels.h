// What the families' files share inside the reference backend.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "peer/backend/reference/reference_kernels.h"

namespace weft::peer::reference {

using dag::Attr;
using dag::DType;
using dag::Ints;
using dag::OpKind;
using dag::Shape;
using Reals = std::vector<double>;
using Wholes = std::vector<int64_t>;

struct Call {
  OpKind kind;
  const dag::Attributes& attributes;
  std::span<const RefValue* const> inputs;
  std::span<RefValue> outputs;
  const StepContext& context;

  bool has(size_t i) const { return i < inputs.size() && inputs[i] != nullptr; }
  const RefValue& in(size_t i) const { return *inputs[i]; }
  const Reals& reals(size_t i) const { return inputs[i]->reals; }
  const Wholes& wholes(size_t i) const { return inputs[i]->wholes; }
  const Shape& shape(size_t i) const { return inputs[i]->spec.shape; }
  RefValue& out(size_t i = 0) const { return outputs[i]; }  // elements are zero at the start
};

// One a family. REQUIRES: call.kind is of the family.
void run_elementwise(const Call& call);
void run_shape(const Call& call);
void run_reduction(const Call& call);
void run_matmul(const Call& call);
void run_stored_matmul(const Call& call);
void run_stored_weight(const Call& call);
void run_attention(const Call& call);
void run_convolution(const Call& call);
void run_normalisation(const Call& call);
void run_softmax(const Call& call);
void run_pooling(const Call& call);
void run_random(const Call& call);
void run_sampling(const Call& call);
void run_recurrent(const Call& call);

// ---- integers: two's complement, of the dtype's width ----

int64_t wrapped(DType dtype, int64_t value);
// `value` as the dtype's nearest float (float dtypes).
double rounded(DType dtype, double value);

// a + b; integers wrap, where signed addition would be undefined.
template <typename T>
T added(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  else
    return a + b;
}

// ---- indices ----

inline size_t at(int64_t index) { return static_cast<size_t>(index); }

inline Shape strides_of(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

// The strides with which an operand of shape `operand` is read while walking `shape`: 0 where it is
// stretched.
inline Shape broadcast_strides(const Shape& operand, const Shape& shape) {
  const Shape own = strides_of(operand);
  Shape strides(shape.size(), 0);
  const size_t prepended = shape.size() - operand.size();
  for (size_t d = 0; d < operand.size(); ++d) strides[prepended + d] = operand[d] == 1 ? 0 : own[d];
  return strides;
}

// Calls visit(flat, offset...) for each element of `shape` in row-major order: `flat` counts up, each offset
// is the dot product of the coordinates and one of `strides`, plus its start.
template <size_t kOperands, typename Visit>
void walk(const Shape& shape, const std::array<Shape, kOperands>& strides,
          std::array<int64_t, kOperands> offsets, Visit visit) {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  Shape index(shape.size(), 0);
  for (int64_t flat = 0; flat < count; ++flat) {
    visit(at(flat), offsets);
    for (size_t d = shape.size(); d-- > 0;) {
      for (size_t k = 0; k < kOperands; ++k) offsets[k] += strides[k][d];
      if (++index[d] < shape[d]) break;
      index[d] = 0;
      for (size_t k = 0; k < kOperands; ++k) offsets[k] -= strides[k][d] * shape[d];
    }
  }
}

// A tensor seen as [outer, axis, inner].
struct AxisView {
  int64_t outer = 1, size = 1, inner = 1;
};
inline AxisView axis_view(const Shape& shape, int64_t axis) {
  AxisView view;
  for (int64_t d = 0; d < static_cast<int64_t>(shape.size()); ++d) {
    if (d < axis) view.outer *= shape[at(d)];
    if (d == axis) view.size = shape[at(d)];
    if (d > axis) view.inner *= shape[at(d)];
  }
  return view;
}

// Calls body(values of input 0, values of output 0) with whichever storage they use: for ops that only move
// elements.
template <typename Body>
void on_storage(const Call& call, Body body) {
  if (call.out().is_real())
    body(call.reals(0), call.out().reals);
  else
    body(call.wholes(0), call.out().wholes);
}

}  // namespace weft::peer::reference
