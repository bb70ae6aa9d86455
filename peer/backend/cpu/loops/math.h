// Branch-free single-precision functions that vectorise: 1 to 2 units in the last place over the whole range,
// with IEEE results for infinities and NaN. exp, log and tanh follow Cephes (Moshier); erf is two minimax
// polynomials, the outer one for log(1 - erf).
#pragma once

#include "peer/backend/cpu/loops/isa.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

WEFT_LOOP_INLINE float bits_to_float(int32_t bits) { return __builtin_bit_cast(float, bits); }
WEFT_LOOP_INLINE int32_t float_to_bits(float x) { return __builtin_bit_cast(int32_t, x); }
WEFT_LOOP_INLINE float abs_(float x) { return bits_to_float(float_to_bits(x) & 0x7fffffff); }
WEFT_LOOP_INLINE float with_sign_of(float magnitude, float x) {
  return bits_to_float((float_to_bits(magnitude) & 0x7fffffff) | (float_to_bits(x) & INT32_MIN));
}

// 2^n for n in [-126, 127].
WEFT_LOOP_INLINE float exponent(int32_t n) {
  return bits_to_float(static_cast<int32_t>((static_cast<uint32_t>(n) + 127u) << 23));
}

WEFT_LOOP_INLINE float exp_(float x) {
  // Beyond these the result is infinite or zero all the same; a NaN passes both comparisons.
  x = x > 89.0f ? 89.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float shifted = x * 1.44269504088896341f + 12582912.0f;  // 1.5 * 2^23: rounds to the nearest integer
  const int32_t n = static_cast<int32_t>(static_cast<uint32_t>(float_to_bits(shifted)) - 0x4B400000u);
  const float k = shifted - 12582912.0f;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // 2^n in two factors: n reaches beyond what one exponent holds.
  const int32_t half = n >> 1;
  return p * exponent(half) * exponent(n - half);
}

WEFT_LOOP_INLINE float log_(float x) {
  const float tiny = 1.17549435e-38f;
  const float scaled = x < tiny ? x * 8388608.0f : x;
  const float offset = x < tiny ? -23.0f : 0.0f;
  const int32_t bits = float_to_bits(scaled);
  // mantissa in [sqrt(1/2), sqrt(2))
  const uint32_t shifted = static_cast<uint32_t>(bits) - 0x3f3504f3u;  // wraps for what has no logarithm
  const int32_t e = static_cast<int32_t>(shifted) >> 23;
  const float m =
      bits_to_float(static_cast<int32_t>(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23))) -
      1.0f;
  const float z = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z;
  const float k = static_cast<float>(e) + offset;
  p += k * -2.12194440e-4f;
  p -= 0.5f * z;
  float y = m + p + k * 0.693359375f;
  y = x == __builtin_inff() ? x : y;
  y = x == 0.0f ? -__builtin_inff() : y;
  return x >= 0.0f ? y : __builtin_nanf("");
}

WEFT_LOOP_INLINE float tanh_(float x) {
  const float a = abs_(x);
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  const float large = with_sign_of(1.0f - 2.0f / (exp_(2.0f * a) + 1.0f), x);
  return a < 0.625f ? small : (x != x ? x : large);
}

WEFT_LOOP_INLINE float sigmoid_(float x) { return 1.0f / (1.0f + exp_(-x)); }

WEFT_LOOP_INLINE float erf_(float x) {
  const float t = abs_(x);
  const float s = x * x;
  // Above 475/512. The polynomial is bounded so that it cannot overflow into an exponent that wraps.
  const float c = t > 4.0f ? 4.0f : t;
  const float d = c * c;
  float r = -1.72853470e-5f * c + 3.83197126e-4f;
  const float u = -3.88396438e-3f * c + 2.42546219e-2f;
  r = r * d + u;
  r = r * c - 1.06777877e-1f;
  r = r * c - 6.34846687e-1f;
  r = r * c - 1.28717512e-1f;
  r = r * c - c;
  const float large = with_sign_of(1.0f - exp_(r), x);
  float q = -5.96761703e-4f;
  q = q * s + 4.99119423e-3f;
  q = q * s - 2.67681349e-2f;
  q = q * s + 1.12819925e-1f;
  q = q * s - 3.76125336e-1f;
  q = q * s + 1.28379166e-1f;
  const float small = q * x + x;
  return t > 0.927734375f ? large : small;  // a NaN takes the second
}

WEFT_LOOP_INLINE float softplus_(float x) {
  const float z = exp_(-abs_(x));
  const float u = 1.0f + z;
  const float d = u - 1.0f;
  const float log1p = d == 0.0f ? z : log_(u) * (z / d);
  return (x > 0.0f ? x : 0.0f) + (x != x ? x : log1p);
}

inline constexpr float kGeluSlope = 0.7978845608028654f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

WEFT_LOOP_INLINE float gelu_(float x) { return 0.5f * x * (1.0f + erf_(x * 0.70710678118654752f)); }
WEFT_LOOP_INLINE float gelu_tanh_(float x) {
  return 0.5f * x * (1.0f + tanh_(kGeluSlope * (x + kGeluCubic * x * x * x)));
}
WEFT_LOOP_INLINE float gelu_grad_(float dy, float x) {
  const float density = 0.3989422804014327f * exp_(-0.5f * x * x);
  return dy * (0.5f * (1.0f + erf_(x * 0.70710678118654752f)) + x * density);
}
WEFT_LOOP_INLINE float gelu_tanh_grad_(float dy, float x) {
  const float t = tanh_(kGeluSlope * (x + kGeluCubic * x * x * x));
  const float slope = kGeluSlope * (1.0f + 3.0f * kGeluCubic * x * x);
  return dy * (0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * slope);
}

}  // namespace
}  // namespace weft::peer::cpu::WEFT_ISA
