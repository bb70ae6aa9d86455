// Conversions to 16 bits and back, sums over a tensor; and the table of this instruction set.
#include "compress/loops/isa.h"

namespace weft::compress::WEFT_ISA {
namespace {

constexpr uint32_t kHalfMax = 0x477fe000u;     // 65504
constexpr uint32_t kHalfNormal = 0x38800000u;  // 2^-14, the smallest normal half
constexpr uint32_t kBFloatMax = 0x7f7f0000u;

// To nearest, ties to even. Below 2^-14 adding one half leaves the multiples of 2^-24 in the last bits.
WEFT_LOOP_INLINE uint16_t half_of(uint32_t bits) {
  const uint32_t sign = (bits >> 16) & 0x8000u;
  uint32_t magnitude = bits & kMagnitude;
  magnitude = magnitude < kHalfMax ? magnitude : kHalfMax;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1)) >> 13;
  const uint32_t small = bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u;
  return static_cast<uint16_t>(sign | (magnitude < kHalfNormal ? small : normal));
}

WEFT_LOOP_INLINE float half_value(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu;
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t small = bits_of(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-24f);
  return float_of(sign | (magnitude < 0x400u ? small : normal));
}

bool to_half(const float* x, uint8_t* out, int64_t count) {
  ShortInMemory* y = reinterpret_cast<ShortInMemory*>(out);
  uint32_t bad = 0;
  int64_t i = 0;
#if defined(__AVX512F__)
  const __m512i magnitude = _mm512_set1_epi32(kMagnitude), limit = _mm512_set1_epi32(kHalfMax);
  __m512i largest = _mm512_setzero_si512();
  for (; i + 16 <= count; i += 16) {
    const __m512i bits = _mm512_loadu_si512(x + i), size = _mm512_and_si512(bits, magnitude);
    largest = _mm512_max_epi32(largest, size);
    // limit's bits where bits >= limit, under the sign of bits
    const __m512i kept = _mm512_ternarylogic_epi32(magnitude, _mm512_min_epi32(size, limit), bits, 0xca);
    const __m256i half = _mm512_cvtps_ph(_mm512_castsi512_ps(kept), _MM_FROUND_TO_NEAREST_INT);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y + i), half);
  }
  bad = _mm512_cmpge_epi32_mask(largest, _mm512_set1_epi32(kInfinity)) != 0;
#elif defined(__F16C__) && defined(__AVX2__)
  const __m256i magnitude = _mm256_set1_epi32(kMagnitude), limit = _mm256_set1_epi32(kHalfMax);
  __m256i largest = _mm256_setzero_si256();
  for (; i + 8 <= count; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    const __m256i size = _mm256_and_si256(bits, magnitude);
    largest = _mm256_max_epi32(largest, size);
    const __m256i kept = _mm256_or_si256(_mm256_min_epi32(size, limit), _mm256_andnot_si256(magnitude, bits));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_castsi256_ps(kept), _MM_FROUND_TO_NEAREST_INT));
  }
  const __m256i over = _mm256_cmpgt_epi32(largest, _mm256_set1_epi32(kInfinity - 1));
  bad = _mm256_movemask_epi8(over) != 0;
#endif
#pragma omp simd reduction(| : bad)
  for (int64_t j = i; j < count; ++j) {
    const uint32_t bits = bits_of(x[j]);
    bad |= (bits & kMagnitude) >= kInfinity ? 1u : 0u;
    y[j] = half_of(bits);
  }
  return bad == 0;
}

bool from_half(const uint8_t* in, float* y, int64_t count) {
  const ShortInMemory* x = reinterpret_cast<const ShortInMemory*>(in);
  uint32_t bad = 0;
  int64_t i = 0;
#if defined(__AVX512F__)
  __m256i largest = _mm256_setzero_si256();
  for (; i + 16 <= count; i += 16) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    largest = _mm256_max_epu16(largest, _mm256_slli_epi16(half, 1));
    _mm512_storeu_ps(y + i, _mm512_cvtph_ps(half));
  }
  bad = _mm256_cmpge_epu16_mask(largest, _mm256_set1_epi16(static_cast<short>(0xf800))) != 0;
#elif defined(__F16C__) && defined(__AVX2__)
  __m128i largest = _mm_setzero_si128();
  for (; i + 8 <= count; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i));
    largest = _mm_max_epu16(largest, _mm_slli_epi16(half, 1));
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(half));
  }
  const __m128i limit = _mm_set1_epi16(static_cast<short>(0xf800));
  bad = _mm_movemask_epi8(_mm_cmpeq_epi16(_mm_max_epu16(largest, limit), largest)) != 0;
#endif
#pragma omp simd reduction(| : bad)
  for (int64_t j = i; j < count; ++j) {
    bad |= (x[j] & 0x7c00u) == 0x7c00u ? 1u : 0u;
    y[j] = half_value(x[j]);
  }
  return bad == 0;
}

bool to_bfloat(const float* x, uint8_t* out, int64_t count) {
  ShortInMemory* y = reinterpret_cast<ShortInMemory*>(out);
  uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = bits_of(x[i]), magnitude = bits & kMagnitude;
    bad |= magnitude >= kInfinity ? 1u : 0u;
    const uint32_t rounded = magnitude + 0x7fffu + ((magnitude >> 16) & 1);
    const uint32_t kept = rounded < kInfinity ? rounded : kBFloatMax;
    y[i] = static_cast<uint16_t>((kept | (bits & ~kMagnitude)) >> 16);
  }
  return bad == 0;
}

bool from_bfloat(const uint8_t* in, float* y, int64_t count) {
  const ShortInMemory* x = reinterpret_cast<const ShortInMemory*>(in);
  uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = static_cast<uint32_t>(x[i]) << 16;
    bad |= (bits & kMagnitude) >= kInfinity ? 1u : 0u;
    y[i] = float_of(bits);
  }
  return bad == 0;
}

bool all_finite(const float* x, int64_t count) {
  uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) bad |= (bits_of(x[i]) & kMagnitude) >= kInfinity ? 1u : 0u;
  return bad == 0;
}

bool all_below_infinity(const float* x, int64_t count) {
  uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = static_cast<int32_t>(bits_of(x[i])),
                  magnitude = bits & static_cast<int32_t>(kMagnitude);
    constexpr int32_t kLimit = static_cast<int32_t>(kInfinity);
    bad |= (magnitude > kLimit ? 1u : 0u) | (bits == kLimit ? 1u : 0u);
  }
  return bad == 0;
}

// Sixteen sums side by side, then one after the other: an order that no width of vectors changes.
void error_sums(const float* x, const float* y, int64_t count, double* sums) {
  double error[16] = {}, whole[16] = {};
  int64_t i = 0;
  for (; i + 16 <= count; i += 16)
#pragma omp simd
    for (int lane = 0; lane < 16; ++lane) {
      const double own = x[i + lane], off = own - y[i + lane];
      error[lane] += off * off;
      whole[lane] += own * own;
    }
  for (; i < count; ++i) {
    const double own = x[i], off = own - y[i];
    error[i % 16] += off * off;
    whole[i % 16] += own * own;
  }
  for (int lane = 0; lane < 16; ++lane) {
    sums[0] += error[lane];
    sums[1] += whole[lane];
  }
}

}  // namespace

void add_float_loops(LoopTable& t) {
  t.to_half = to_half;
  t.from_half = from_half;
  t.to_bfloat = to_bfloat;
  t.from_bfloat = from_bfloat;
  t.all_finite = all_finite;
  t.all_below_infinity = all_below_infinity;
  t.error_sums = error_sums;
}

const LoopTable& table() {
  static LoopTable filled = {};
  static const bool kOnce = [] {
    filled.isa = WEFT_LOOP_STRING(WEFT_ISA);
    add_float_loops(filled);
    add_block_loops(filled);
    add_select_loops(filled);
    add_value_loops(filled);
    return true;
  }();
  (void)kOnce;
  return filled;
}

}  // namespace weft::compress::WEFT_ISA
