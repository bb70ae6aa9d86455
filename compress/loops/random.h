// Philox (base/rng.h) for a vector of counters at once.
#pragma once

#include "compress/loops/isa.h"

namespace weft::compress::WEFT_ISA {
namespace {

// The 64-bit products of the lower halves.
WEFT_LOOP_INLINE LongWords multiply_low(LongWords a, LongWords b) {
#if defined(__AVX512F__)
  return reinterpret_cast<LongWords>(
      _mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<LongWords>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<LongWords>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

// A counter in each long word. Only lower halves count: what upper ones hold is never looked at.
struct Counters {
  LongWords c[4];
};

WEFT_LOOP_INLINE void philox_rounds(Counters& s, const Stream& stream) {
  const LongWords none = {};
  const LongWords first = none + 0xD2511F53u, second = none + 0xCD9E8D57u;
  uint32_t key0 = stream.key[0], key1 = stream.key[1];
#pragma GCC unroll 10
  for (int round = 0; round < 10; ++round) {
    const LongWords a = multiply_low(first, s.c[0]), b = multiply_low(second, s.c[2]);
    s.c[0] = (b >> 32) ^ s.c[1] ^ (none + key0);
    s.c[1] = b;
    s.c[2] = (a >> 32) ^ s.c[3] ^ (none + key1);
    s.c[3] = a;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

// words[w] of lane l is word w of the stream's block first + l.
WEFT_LOOP_INLINE void draw(const Stream& stream, uint32_t first, Words words[4]) {
  const LongWords none = {};
  LongWords lane = {};
  for (int i = 0; i < kLanes / 2; ++i) lane[i] = 2 * static_cast<uint64_t>(i);
  Counters even = {{lane + first, none + stream.tag, none + stream.high[0], none + stream.high[1]}};
  Counters odd = even;
  odd.c[0] = lane + (first + 1);  // in 64 bits; only the lower 32 count
  philox_rounds(even, stream);
  philox_rounds(odd, stream);
  for (int w = 0; w < 4; ++w)
    words[w] = reinterpret_cast<Words>((even.c[w] & 0xffffffffu) | (odd.c[w] << 32));
}

// Sixteen bits for each of the kBlock elements of a block: those of element e are in block first + e % 16 of
// the stream, word e / 32, the upper half where e / 16 is odd. bits[v] is for elements v * kLanes onwards.
WEFT_LOOP_INLINE void draw_block(const Stream& stream, uint32_t first, Words bits[kBlock / kLanes]) {
  constexpr int kGroups = 16 / kLanes;
#pragma GCC unroll 4
  for (int group = 0; group < kGroups; ++group) {
    Words words[4];
    draw(stream, first + static_cast<uint32_t>(group * kLanes), words);
#pragma GCC unroll 8
    for (int row = 0; row < 8; ++row)
      bits[row * kGroups + group] = row % 2 == 0 ? words[row / 2] & 0xffffu : words[row / 2] >> 16;
  }
}

// Eight bits for each of the kBlock elements of a block: those of element e are in block first + e % 8 of the
// stream, byte e / 32 of word e / 8 % 4. bits[v] is for elements v * kLanes onwards.
WEFT_LOOP_INLINE void draw_bytes(const Stream& stream, uint32_t first, Words bits[kBlock / kLanes]) {
#if defined(__AVX512F__)
  const LongWords none = {};
  LongWords lane = {};
  for (int i = 0; i < 8; ++i) lane[i] = static_cast<uint64_t>(i);
  Counters s = {{lane + first, none + stream.tag, none + stream.high[0], none + stream.high[1]}};
  philox_rounds(s, stream);
  Words words[2];  // of two rows of eight elements each
  for (int pair = 0; pair < 2; ++pair)
    words[pair] = __builtin_shufflevector(reinterpret_cast<Words>(s.c[2 * pair]),
                                          reinterpret_cast<Words>(s.c[2 * pair + 1]), 0, 2, 4, 6, 8, 10, 12,
                                          14, 16, 18, 20, 22, 24, 26, 28, 30);
#pragma GCC unroll 8
  for (int v = 0; v < 8; ++v) bits[v] = words[v % 2] >> (8 * (v / 2)) & 0xffu;
#else
  constexpr int kGroups = 8 / kLanes;
#pragma GCC unroll 2
  for (int group = 0; group < kGroups; ++group) {
    Words words[4];
    draw(stream, first + static_cast<uint32_t>(group * kLanes), words);
#pragma GCC unroll 16
    for (int row = 0; row < 16; ++row)
      bits[row * kGroups + group] = words[row % 4] >> (8 * (row / 4)) & 0xffu;
  }
#endif
}

}  // namespace
}  // namespace weft::compress::WEFT_ISA
