// Draws of random ops: Philox4x32-10 (base/rng.h) with counter {place / 4, step, key}, of which the element
// at a place takes word place % 4. A thread draws for four places at a time, from any place on.
#pragma once

#include "peer/backend/cuda/kernels/elements.cuh"

#if defined(__CUDACC__) || defined(WEFT_CUDA_SHIM)

namespace weft::peer::cuda::random {

using elements::Four;

// The draws of one op in one step.
struct Draws {
  uint64_t seed;
  uint32_t step, key;

  __device__ __forceinline__ Four<uint32_t> block(uint64_t number) const {
    uint32_t c0 = static_cast<uint32_t>(number), c1 = static_cast<uint32_t>(number >> 32), c2 = step,
             c3 = key;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    WEFT_UNROLL
    for (int round = 0; round < 10; ++round) {
      const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
      c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
      c1 = static_cast<uint32_t>(b);
      c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
      c3 = static_cast<uint32_t>(a);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
  }
};
__device__ __forceinline__ Draws draws(const DeviceContext& context, uint32_t key) {
  return {context.seed, static_cast<uint32_t>(context.step), key};
}

// The place in the batch of the first of `count` elements that the microbatch's samples share evenly.
__device__ __forceinline__ uint64_t first_place(const DeviceContext& context, int64_t count) {
  const int64_t samples = context.microbatch_size < 1 ? 1 : context.microbatch_size;
  if (samples > count) return 0;
  const int64_t each =
      count >> 32 == 0 ? static_cast<int64_t>(static_cast<uint32_t>(count) / static_cast<uint32_t>(samples))
                       : count / samples;
  return static_cast<uint64_t>(context.sample_position * each);
}
// The same of a value that is drawn once a step unless it leads with the microbatch.
__device__ __forceinline__ uint64_t first_place(const DeviceContext& context, int64_t count,
                                                int64_t leading) {
  const int64_t samples = context.microbatch_size < 1 ? 1 : context.microbatch_size;
  return leading == samples ? first_place(context, count) : 0;
}

// Four in a row, from `shift` (at most 3) of eight on.
template <typename T>
__device__ __forceinline__ Four<T> window(const Four<T>& first, const Four<T>& second, uint32_t shift) {
  const T at[8] = {first.at[0],  first.at[1],  first.at[2],  first.at[3],
                   second.at[0], second.at[1], second.at[2], second.at[3]};
  Four<T> four;
  WEFT_UNROLL
  for (int j = 0; j < 4; ++j)
    four.at[j] = shift == 0 ? at[j] : shift == 1 ? at[j + 1] : shift == 2 ? at[j + 2] : at[j + 3];
  return four;
}

// Of the places from `place` on.
__device__ __forceinline__ Four<uint32_t> words(const Draws& draws, uint64_t place) {
  const Four<uint32_t> first = draws.block(place / 4);
  const uint32_t shift = static_cast<uint32_t>(place % 4);
  if (shift == 0) return first;
  return window(first, draws.block(place / 4 + 1), shift);
}

// The upper 24 bits, in [0, 1).
__device__ __forceinline__ float fraction(uint32_t draw) {
  return static_cast<float>(draw >> 8) * 5.9604644775390625e-8f;  // 2^-24
}

// Box-Muller: two numbers of two draws.
__device__ __forceinline__ Four<float> normals_of(const Four<uint32_t>& words) {
  Four<float> four;
  WEFT_UNROLL
  for (int j = 0; j < 4; j += 2) {
    const float radius = sqrtf(-2.0f * math::log(fraction(words.at[j]) + 5.9604644775390625e-8f));
    const float angle = 6.28318530717958648f * fraction(words.at[j + 1]);
    four.at[j] = radius * math::cos(angle);
    four.at[j + 1] = radius * math::sin(angle);
  }
  return four;
}
__device__ __forceinline__ Four<float> normals(const Draws& draws, uint64_t place) {
  const Four<float> first = normals_of(draws.block(place / 4));
  const uint32_t shift = static_cast<uint32_t>(place % 4);
  if (shift == 0) return first;
  return window(first, normals_of(draws.block(place / 4 + 1)), shift);
}

}  // namespace weft::peer::cuda::random

#endif
