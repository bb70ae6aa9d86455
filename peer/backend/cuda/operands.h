// Operands whose dtype does not matter, only the size of their elements.
#pragma once

#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/index.cuh"
#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {

inline constexpr int64_t kUnitMax = sizeof(Unit16);

// All of a value's memory.
struct Region {
  std::byte* data;
  int64_t bytes;
  template <typename T>
  Array<T> as() const {
    return {reinterpret_cast<T*>(data), bytes / static_cast<int64_t>(sizeof(T))};
  }
};
struct Operand {
  int slot;
  int64_t bytes;
  Region in(const Call& call) const { return {address(call.inputs[static_cast<size_t>(slot)]), bytes}; }
  Region out(const Call& call) const { return {address(call.outputs[static_cast<size_t>(slot)]), bytes}; }
};
inline Operand operand(const KernelRequest& request, size_t i) {
  return {request.input_slot(i), request.in(i).spec.bytes().value};
}
inline Operand result(const KernelRequest& request, size_t i = 0) {
  return {request.output_slot(i), request.out(i).spec.bytes().value};
}

// I32 or I64 operands.
struct IndexOperand {
  Operand operand;
  bool wide;
  Indices in(const Call& call) const {
    const Region region = operand.in(call);
    if (wide) return {{}, region.as<const int64_t>()};
    return {region.as<const int32_t>(), {}};
  }
};
inline IndexOperand index_operand(const KernelRequest& request, size_t i) {
  return {operand(request, i), request.in(i).spec.dtype == dag::DType::I64};
}

// f(a value of the type of so many bytes)
template <typename F>
Status by_element(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t{});
    case 2:
      return f(uint16_t{});
    case 4:
      return f(uint32_t{});
    default:
      return f(uint64_t{});
  }
}
template <typename F>
Status by_unit(int64_t bytes, const F& f) {
  return bytes == kUnitMax ? f(Unit16{}) : by_element(bytes, f);
}

// Of elements of `bytes`, how many make up the widest unit that divides all of `numbers`, which count
// elements.
inline int64_t widest_unit(int64_t bytes, const std::vector<int64_t>& numbers) {
  int64_t unit = kUnitMax / bytes;
  for (const int64_t number : numbers)
    while (number % unit != 0) unit /= 2;
  return unit;
}

using Strides = std::vector<int64_t>;  // elements
inline Strides row_major(const dag::Shape& shape) {
  Strides strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

inline int64_t size_of(const dag::Value& value) { return dag::element_size(value.spec.dtype); }

inline Grid grid_of_moves(int64_t count) {
  return {static_cast<uint32_t>((count + kMoveBlock - 1) / kMoveBlock), kMoveThreads, 1};
}

}  // namespace weft::peer::cuda
