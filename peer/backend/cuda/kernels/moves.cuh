// How a thread moves its elements: all loads, then all stores, so that loads are under way together.
#pragma once

#include "peer/backend/cuda/kernels/block.cuh"
#include "peer/backend/cuda/kernels/shape.h"

namespace weft::peer::cuda {

// Calls load(k, i) for the thread's elements i, then store(k, i). Neighbouring threads have neighbours.
template <typename Load, typename Store>
__device__ __forceinline__ void move_each(uint32_t count, const Load& load, const Store& store) {
  const uint32_t first = blockIdx.x * kMoveBlock + threadIdx.x;
  WEFT_UNROLL
  for (int k = 0; k < kMovesEach; ++k)
    if (const uint32_t i = first + static_cast<uint32_t>(k) * kMoveThreads; i < count) load(k, i);
  WEFT_UNROLL
  for (int k = 0; k < kMovesEach; ++k)
    if (const uint32_t i = first + static_cast<uint32_t>(k) * kMoveThreads; i < count) store(k, i);
}

}  // namespace weft::peer::cuda
