// Where elements lie: division by numbers that are known at the launch, walks over tensors with strides, and
// indices that came with the data. Counts of one launch stay below 2^31, places are 64 bits wide.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

inline constexpr int64_t kCountMax = (int64_t{1} << 31) - 1;

// n / divisor = (high half of n * multiplier + n) >> shift, for n below 2^31.
struct Divider {
  uint32_t divisor = 1, multiplier = 1, shift = 0;
};

// REQUIRES: 1 <= divisor <= kCountMax.
constexpr Divider divider(int64_t divisor) {
  uint32_t shift = 0;
  while ((int64_t{1} << shift) < divisor) ++shift;
  const uint64_t rest = (uint64_t{1} << shift) - static_cast<uint64_t>(divisor);
  return {static_cast<uint32_t>(divisor),
          static_cast<uint32_t>((rest << 32) / static_cast<uint64_t>(divisor) + 1), shift};
}

// Elements of a box in row-major order, and where each lies in two tensors. Innermost dim first.
inline constexpr int kWalkDims = 8;
struct Walk {
  int32_t rank = 0;
  Divider sizes[kWalkDims];
  int64_t from[kWalkDims] = {}, to[kWalkDims] = {};
};

// I32 or I64, whichever is there.
struct Indices {
  Array<const int32_t> narrow;
  Array<const int64_t> wide;
};

#if defined(__CUDACC__) || defined(WEFT_CUDA_SHIM)

__device__ __forceinline__ uint32_t divided(uint32_t n, const Divider& by) {
  return (__umulhi(n, by.multiplier) + n) >> by.shift;
}
// n becomes the quotient; the remainder is returned.
__device__ __forceinline__ uint32_t take_remainder(uint32_t& n, const Divider& by) {
  const uint32_t quotient = divided(n, by), remainder = n - quotient * by.divisor;
  n = quotient;
  return remainder;
}

struct Places {
  int64_t from, to;
};
__device__ __forceinline__ Places places_of(const Walk& walk, uint32_t i) {
  Places places{0, 0};
  for (int32_t d = 0; d < walk.rank; ++d) {
    const auto at = static_cast<int64_t>(take_remainder(i, walk.sizes[d]));
    places.from += at * walk.from[d];
    places.to += at * walk.to[d];
  }
  return places;
}

// Counted from the front; -1 where it is out of [-size, size).
__device__ __forceinline__ int64_t resolved(const Indices& indices, int64_t i, int64_t size) {
  const int64_t index = indices.wide.present() ? indices.wide[i] : int64_t{indices.narrow[i]};
  if (index < -size || index >= size) return -1;
  return index < 0 ? index + size : index;
}

#endif

}  // namespace weft::peer::cuda
