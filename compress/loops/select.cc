// Elements by their magnitude: what TopK is made of. Magnitudes are compared as the bits of floats without
// the sign, which order as the floats do.
#include "compress/loops/isa.h"

namespace weft::compress::WEFT_ISA {
namespace {

#if defined(__AVX2__) && !defined(__AVX512F__)
// order[mask] are the lanes whose bits are set in mask, ascending, a byte each.
struct Orders {
  uint64_t order[256];
};
constexpr Orders kOrders = [] {
  Orders orders = {};
  for (uint64_t mask = 0; mask < 256; ++mask) {
    int found = 0;
    for (uint64_t lane = 0; lane < 8; ++lane)
      if ((mask >> lane & 1) != 0) orders.order[mask] |= lane << (8 * found++);
  }
  return orders;
}();

WEFT_LOOP_INLINE __m256i order_of(int mask) {
  return _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(static_cast<int64_t>(kOrders.order[mask])));
}
WEFT_LOOP_INLINE __m256i load_256(const void* x) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(x));
}
WEFT_LOOP_INLINE void put(uint32_t* to, __m256i v, __m256i order) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permutevar8x32_epi32(v, order));
}
// Signed: magnitudes have 31 bits.
WEFT_LOOP_INLINE int mask_at_least(__m256i bits, __m256i below) {
  const __m256i size = _mm256_and_si256(bits, _mm256_set1_epi32(kMagnitude));
  return _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(size, below)));
}
#endif

int64_t take_at_least(const float* x, int64_t count, uint32_t first, uint32_t threshold, uint32_t* index,
                      uint32_t* bits) {
  int64_t found = 0, i = 0;
#if defined(__AVX512F__)
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude),
                limit = _mm512_set1_epi32(static_cast<int>(threshold));
  const __m512i step = _mm512_set1_epi32(16);
  __m512i here = _mm512_add_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                  _mm512_set1_epi32(static_cast<int>(first)));
  for (; i + 16 <= count; i += 16, here = _mm512_add_epi32(here, step)) {
    const __m512i v = _mm512_loadu_si512(x + i);
    const __mmask16 which = _mm512_cmpge_epi32_mask(_mm512_and_si512(v, magnitude), limit);
    // Into a register and out of it: compressing into memory is slow on some processors.
    _mm512_storeu_si512(index + found, _mm512_maskz_compress_epi32(which, here));
    _mm512_storeu_si512(bits + found, _mm512_maskz_compress_epi32(which, v));
    found += __builtin_popcount(which);
  }
#elif defined(__AVX2__)
  const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1), step = _mm256_set1_epi32(8);
  __m256i here =
      _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(static_cast<int>(first)));
  for (; i + 8 <= count; i += 8, here = _mm256_add_epi32(here, step)) {
    const __m256i v = load_256(x + i);
    const int which = mask_at_least(v, below);
    const __m256i order = order_of(which);
    put(index + found, here, order);
    put(bits + found, v, order);
    found += __builtin_popcount(static_cast<unsigned>(which));
  }
#endif
  for (; i < count; ++i) {
    const uint32_t own = bits_of(x[i]);
    index[found] = first + static_cast<uint32_t>(i);
    bits[found] = own;
    found += (own & kMagnitude) >= threshold ? 1 : 0;
  }
  return found;
}

// Reads never lag behind writes: up to here, no more was kept than read.
int64_t keep_at_least(uint32_t* index, uint32_t* bits, int64_t count, uint32_t threshold) {
  int64_t kept = 0, i = 0;
#if defined(__AVX512F__)
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude),
                limit = _mm512_set1_epi32(static_cast<int>(threshold));
  for (; i + 16 <= count; i += 16) {
    const __m512i v = _mm512_loadu_si512(bits + i), place = _mm512_loadu_si512(index + i);
    const __mmask16 which = _mm512_cmpge_epi32_mask(_mm512_and_si512(v, magnitude), limit);
    _mm512_storeu_si512(index + kept, _mm512_maskz_compress_epi32(which, place));
    _mm512_storeu_si512(bits + kept, _mm512_maskz_compress_epi32(which, v));
    kept += __builtin_popcount(which);
  }
#elif defined(__AVX2__)
  const __m256i below = _mm256_set1_epi32(static_cast<int>(threshold) - 1);
  for (; i + 8 <= count; i += 8) {
    const __m256i v = load_256(bits + i), place = load_256(index + i);
    const int which = mask_at_least(v, below);
    const __m256i order = order_of(which);
    put(index + kept, place, order);
    put(bits + kept, v, order);
    kept += __builtin_popcount(static_cast<unsigned>(which));
  }
#endif
  for (; i < count; ++i) {
    const uint32_t own = bits[i], place = index[i];
    index[kept] = place;
    bits[kept] = own;
    kept += (own & kMagnitude) >= threshold ? 1 : 0;
  }
  return kept;
}

int64_t take_between(const uint32_t* bits, int64_t count, uint32_t low, uint32_t high, uint32_t* to) {
  int64_t found = 0, i = 0;
#if defined(__AVX512F__)
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude), start = _mm512_set1_epi32(static_cast<int>(low));
  const __m512i span = _mm512_set1_epi32(static_cast<int>(high - low));
  for (; i + 16 <= count; i += 16) {
    const __m512i size = _mm512_and_si512(_mm512_loadu_si512(bits + i), magnitude);
    const __mmask16 which = _mm512_cmple_epu32_mask(_mm512_sub_epi32(size, start), span);
    _mm512_storeu_si512(to + found, _mm512_maskz_compress_epi32(which, size));
    found += __builtin_popcount(which);
  }
#elif defined(__AVX2__)
  const __m256i magnitude = _mm256_set1_epi32(kMagnitude), start = _mm256_set1_epi32(static_cast<int>(low));
  const __m256i span = _mm256_set1_epi32(static_cast<int>(high - low));
  for (; i + 8 <= count; i += 8) {
    const __m256i size = _mm256_and_si256(load_256(bits + i), magnitude), off = _mm256_sub_epi32(size, start);
    const __m256i inside = _mm256_cmpeq_epi32(_mm256_min_epu32(off, span), off);
    const int which = _mm256_movemask_ps(_mm256_castsi256_ps(inside));
    put(to + found, size, order_of(which));
    found += __builtin_popcount(static_cast<unsigned>(which));
  }
#endif
  for (; i < count; ++i) {
    const uint32_t size = bits[i] & kMagnitude;
    to[found] = size;
    found += size - low <= high - low ? 1 : 0;
  }
  return found;
}

uint32_t largest_magnitude(const uint32_t* bits, int64_t count) {
  int32_t largest = 0;
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) {
    const auto size = static_cast<int32_t>(bits[i] & kMagnitude);
    largest = size > largest ? size : largest;
  }
  return static_cast<uint32_t>(largest);
}

// Four tables side by side, for neighbours that fall into one bin would wait for each other.
void count_bins(const uint32_t* bits, int64_t count, uint32_t low, uint32_t shift, uint32_t* bins) {
  uint32_t parts[4][kBins + 1] = {};
  const auto add = [&](int part, uint32_t own) __attribute__((always_inline)) {
    const uint32_t bin = ((own & kMagnitude) - low) >> shift;
    ++parts[part][bin < kBins ? bin : kBins];
  };
  int64_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (int part = 0; part < 4; ++part) add(part, bits[i + part]);
  for (; i < count; ++i) add(0, bits[i]);
  for (uint32_t bin = 0; bin < kBins; ++bin)
    bins[bin] = parts[0][bin] + parts[1][bin] + parts[2][bin] + parts[3][bin];
}

}  // namespace

void add_select_loops(LoopTable& t) {
  t.take_at_least = take_at_least;
  t.keep_at_least = keep_at_least;
  t.take_between = take_between;
  t.largest_magnitude = largest_magnitude;
  t.count_bins = count_bins;
}

}  // namespace weft::compress::WEFT_ISA
