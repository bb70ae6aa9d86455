// The elements of a vector for which something holds, put one after the other. Where the instruction set has
// no way to do that (kCompacts is false) loops go by one element at a time.
#pragma once

#include "compress/loops/isa.h"

namespace weft::compress::WEFT_ISA {
namespace {

#if defined(__AVX512F__)
constexpr bool kCompacts = true;

// Bit i is set where a[i] >= limit[i]. The mask goes to a general register at once: g++ 12 may spill a mask
// register as 16 bits and read 32 of them back (seen under ThreadSanitizer, whose calls lie in between).
WEFT_LOOP_INLINE uint32_t mask_at_least(Words a, Words limit) {
  uint32_t mask = _mm512_cmpge_epu32_mask(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(limit));
  asm("" : "+r"(mask));
  return mask;
}
// Those of v whose bit is set; writes a whole vector. By way of a register: compressing into memory is slow
// on some processors.
WEFT_LOOP_INLINE void put(uint32_t* to, Words v, uint32_t mask) {
  _mm512_storeu_si512(
      to, _mm512_maskz_compress_epi32(static_cast<__mmask16>(mask), reinterpret_cast<__m512i>(v)));
}
// The inverse: the first elements of v where bits are set, zeros elsewhere.
WEFT_LOOP_INLINE Words spread(Words v, uint32_t mask) {
  return reinterpret_cast<Words>(
      _mm512_maskz_expand_epi32(static_cast<__mmask16>(mask), reinterpret_cast<__m512i>(v)));
}
#elif defined(__AVX2__)
constexpr bool kCompacts = true;

// order[mask] are the lanes whose bits are set in mask, ascending, a byte each.
// rank[mask] are, of each lane, how many bits are set below it, or 0x80 where its own is not.
struct Orders {
  uint64_t order[256], rank[256];
};
constexpr Orders kOrders = [] {
  Orders orders = {};
  for (uint64_t mask = 0; mask < 256; ++mask) {
    uint64_t found = 0;
    for (uint64_t lane = 0; lane < 8; ++lane)
      if ((mask >> lane & 1) != 0) {
        orders.rank[mask] |= found << (8 * lane);
        orders.order[mask] |= lane << (8 * found++);
      } else {
        orders.rank[mask] |= uint64_t{0x80} << (8 * lane);
      }
  }
  return orders;
}();

WEFT_LOOP_INLINE uint32_t mask_at_least(Words a, Words limit) {
  const auto x = reinterpret_cast<__m256i>(a);
  const __m256i holds = _mm256_cmpeq_epi32(_mm256_max_epu32(x, reinterpret_cast<__m256i>(limit)), x);
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(holds)));
}
WEFT_LOOP_INLINE void put(uint32_t* to, Words v, uint32_t mask) {
  const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kOrders.order[mask])));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm256_permutevar8x32_epi32(reinterpret_cast<__m256i>(v), order));
}
WEFT_LOOP_INLINE Words spread(Words v, uint32_t mask) {
  const __m256i rank = _mm256_cvtepi8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kOrders.rank[mask])));
  const __m256i moved = _mm256_permutevar8x32_epi32(reinterpret_cast<__m256i>(v), rank);
  return reinterpret_cast<Words>(_mm256_andnot_si256(_mm256_srai_epi32(rank, 31), moved));
}
#else
constexpr bool kCompacts = false;
WEFT_LOOP_INLINE uint32_t mask_at_least(Words, Words) { return 0; }
WEFT_LOOP_INLINE void put(uint32_t*, Words, uint32_t) {}
WEFT_LOOP_INLINE Words spread(Words v, uint32_t) { return v; }
#endif

// How many elements whole vectors cover.
WEFT_LOOP_INLINE int64_t in_vectors(int64_t count) { return kCompacts ? count / kLanes * kLanes : 0; }

WEFT_LOOP_INLINE Words all(uint32_t x) { return Words{} + x; }
WEFT_LOOP_INLINE Words upwards_from(uint32_t first) {
  Words v = {};
  for (int i = 0; i < kLanes; ++i) v[i] = first + static_cast<uint32_t>(i);
  return v;
}

}  // namespace
}  // namespace weft::compress::WEFT_ISA
