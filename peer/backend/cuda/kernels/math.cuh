// The functions of floats that ops need, by what IEEE defines alone: + - * /, fmaf, sqrtf, rounding to whole
// numbers, and bits. Their results are the same on every GPU and on the host's shim, which those of CUDA's
// own expf and its like are not; 1 to 3 units in the last place over the whole range (Gelu: of the larger of
// x and 1), and IEEE results for zeroes, infinities and NaN (whose payload is anybody's). exp, log, tanh and
// the like follow Cephes (Moshier).
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

#if defined(__CUDACC__) || defined(WEFT_CUDA_SHIM)

namespace weft::peer::cuda::math {

#if defined(__CUDACC__)
__device__ __forceinline__ float from_bits(int32_t bits) { return __int_as_float(bits); }
__device__ __forceinline__ int32_t to_bits(float x) { return __float_as_int(x); }
#else
__device__ __forceinline__ float from_bits(int32_t bits) { return __builtin_bit_cast(float, bits); }
__device__ __forceinline__ int32_t to_bits(float x) { return __builtin_bit_cast(int32_t, x); }
#endif

__device__ __forceinline__ float infinity() { return from_bits(0x7f800000); }
__device__ __forceinline__ float not_a_number() { return from_bits(0x7fc00000); }

__device__ __forceinline__ float absolute(float x) { return from_bits(to_bits(x) & 0x7fffffff); }
__device__ __forceinline__ float with_sign_of(float magnitude, float x) {
  return from_bits((to_bits(magnitude) & 0x7fffffff) |
                   static_cast<int32_t>(static_cast<uint32_t>(to_bits(x)) & 0x80000000u));
}
// 2^n for n in [-126, 127].
__device__ __forceinline__ float power_of_two(int32_t n) {
  return from_bits(static_cast<int32_t>((static_cast<uint32_t>(n) + 127u) << 23));
}

// ---- exponential and logarithm ----

// log(2) = kLog2High + kLog2Low; few bits in the upper part, so that its product with an exponent is exact.
inline constexpr float kLog2High = 0.693359375f;
inline constexpr float kLog2Low = -2.12194440e-4f;

// 2^shift * e^(x + tail), for a tail that is small beside x and a shift of -1 or 0.
__device__ __forceinline__ float exp_of(float x, float tail, int32_t shift) {
  // Beyond these the result is infinite or zero all the same; a NaN passes both comparisons.
  x = x > 90.0f ? 90.0f : x;
  x = x < -104.0f ? -104.0f : x;
  const float rounded = fmaf(x, 1.44269504f, 12582912.0f);  // + 1.5 * 2^23: rounds to the nearest integer
  const int32_t n = static_cast<int32_t>(static_cast<uint32_t>(to_bits(rounded)) - 0x4b400000u) + shift;
  const float k = rounded - 12582912.0f;
  const float r = fmaf(k, -kLog2Low, fmaf(k, -kLog2High, x)) + tail;
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f);
  p = fmaf(p, r, 8.3334519073e-3f);
  p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f);
  p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  // 2^n in two factors: n reaches beyond what one exponent holds.
  const int32_t half = n >> 1;
  return p * power_of_two(half) * power_of_two(n - half);
}
__device__ __forceinline__ float exp(float x) { return exp_of(x, 0.0f, 0); }

// x = 2^exponent * (1 + m), with 1 + m in [sqrt(1/2), sqrt(2)). Anything for what has no logarithm.
struct Parts {
  float exponent, m;
};
__device__ __forceinline__ Parts parts_of(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const int32_t bits = to_bits(tiny ? x * 8388608.0f : x);
  const int32_t e = static_cast<int32_t>(static_cast<uint32_t>(bits) - 0x3f3504f3u) >> 23;
  const int32_t mantissa =
      static_cast<int32_t>(static_cast<uint32_t>(bits) - (static_cast<uint32_t>(e) << 23));
  return {static_cast<float>(e) + (tiny ? -23.0f : 0.0f), from_bits(mantissa) - 1.0f};
}

__device__ __forceinline__ float log(float x) {
  const Parts parts = parts_of(x);
  const float m = parts.m, k = parts.exponent;
  float p = 7.0376836292e-2f;
  p = fmaf(p, m, -1.1514610310e-1f);
  p = fmaf(p, m, 1.1676998740e-1f);
  p = fmaf(p, m, -1.2420140846e-1f);
  p = fmaf(p, m, 1.4249322787e-1f);
  p = fmaf(p, m, -1.6668057665e-1f);
  p = fmaf(p, m, 2.0000714765e-1f);
  p = fmaf(p, m, -2.4999993993e-1f);
  p = fmaf(p, m, 3.3333331174e-1f);
  const float z = m * m;
  p = fmaf(k, kLog2Low, p * m * z);
  const float y = fmaf(k, kLog2High, m + fmaf(-0.5f, z, p));
  if (x == 0.0f) return -infinity();
  if (!(x >= 0.0f)) return not_a_number();
  return x == infinity() ? x : y;
}

// log(1 + x), also where 1 + x rounds away what x says.
__device__ __forceinline__ float log1p(float x) {
  const float u = 1.0f + x, lost = x - (u - 1.0f);
  if (u == infinity()) return x;
  return lost == 0.0f ? log(u) : log(u) + lost / u;
}

// ---- hyperbolic functions and their kin ----

__device__ __forceinline__ float tanh(float x) {
  const float a = absolute(x), z = x * x;
  float p = -5.70498872745e-3f;
  p = fmaf(p, z, 2.06390887954e-2f);
  p = fmaf(p, z, -5.37397155531e-2f);
  p = fmaf(p, z, 1.33314422036e-1f);
  p = fmaf(p, z, -3.33332819422e-1f);
  const float small = fmaf(p * z, a, a);
  const float large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
  return x != x ? x : with_sign_of(a < 0.625f ? small : large, x);
}

__device__ __forceinline__ float sigmoid(float x) {
  const float z = exp(-absolute(x));  // at most 1
  return (x >= 0.0f ? 1.0f : z) / (1.0f + z);
}

__device__ __forceinline__ float softplus(float x) {
  const float z = log1p(exp(-absolute(x)));
  return x > 0.0f ? x + z : z;
}

__device__ __forceinline__ float sinh(float x) {
  const float a = absolute(x), z = x * x;
  float p = 2.03721912945e-4f;
  p = fmaf(p, z, 8.33028376239e-3f);
  p = fmaf(p, z, 1.66667160211e-1f);
  const float e = exp_of(a, 0.0f, -1);  // half of e^a, which overflows no earlier than the result
  return x != x ? x : with_sign_of(a < 1.0f ? fmaf(p * z, a, a) : e - 0.25f / e, x);
}

__device__ __forceinline__ float cosh(float x) {
  const float e = exp_of(absolute(x), 0.0f, -1);
  return e + 0.25f / e;
}

inline constexpr float kLog2 = 0.69314718f;

__device__ __forceinline__ float asinh(float x) {
  const float a = absolute(x);
  const float near = log1p(a + a * a / (1.0f + sqrtf(fmaf(a, a, 1.0f))));
  return x != x ? x : with_sign_of(a < 1e9f ? near : log(a) + kLog2, x);
}

__device__ __forceinline__ float acosh(float x) {
  const float t = x - 1.0f;
  if (!(x >= 1.0f)) return not_a_number();
  return x > 1e9f ? log(x) + kLog2 : log1p(t + sqrtf(fmaf(t, t, 2.0f * t)));
}

__device__ __forceinline__ float atanh(float x) {
  const float a = absolute(x);
  if (!(a <= 1.0f)) return not_a_number();
  return with_sign_of(0.5f * log1p(2.0f * a / (1.0f - a)), x);
}

// ---- the error function and Gelu ----

// Two minimax polynomials, the outer one for log(1 - erf).
__device__ __forceinline__ float erf(float x) {
  const float a = absolute(x), s = x * x;
  const float c = a > 4.0f ? 4.0f : a;  // erf is 1 from there on, and the polynomial would overflow
  const float d = c * c;
  float r = fmaf(-1.72853470e-5f, c, 3.83197126e-4f);
  const float u = fmaf(-3.88396438e-3f, c, 2.42546219e-2f);
  r = fmaf(r, d, u);
  r = fmaf(r, c, -1.06777877e-1f);
  r = fmaf(r, c, -6.34846687e-1f);
  r = fmaf(r, c, -1.28717512e-1f);
  r = fmaf(r, c, -c);
  const float large = 1.0f - exp(r);
  float q = -5.96761703e-4f;
  q = fmaf(q, s, 4.99119423e-3f);
  q = fmaf(q, s, -2.67681349e-2f);
  q = fmaf(q, s, 1.12819925e-1f);
  q = fmaf(q, s, -3.76125336e-1f);
  q = fmaf(q, s, 1.28379166e-1f);
  const float small = fmaf(q, a, a);
  return x != x ? x : with_sign_of(a > 0.927734375f ? large : small, x);
}

inline constexpr float kRootHalf = 0.70710678f;
inline constexpr float kGeluSlope = 0.79788456f;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715f;

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erf(x * kRootHalf)); }
__device__ __forceinline__ float gelu_grad(float dy, float x) {
  const float density = 0.39894228f * exp(-0.5f * x * x);
  return dy * (0.5f * (1.0f + erf(x * kRootHalf)) + x * density);
}

// (1 + tanh(u)) / 2 is the sigmoid of 2u: 1 / (1 + z) or, for a negative u, z / (1 + z), with z = e^-|2u|.
struct Gate {
  float z, q;  // q = 1 / (1 + z)
};
__device__ __forceinline__ Gate gelu_gate(float x) {
  const float u = kGeluSlope * (x + kGeluCubic * x * x * x);
  const float z = exp(-2.0f * absolute(u));
  return {z, 1.0f / (1.0f + z)};
}
__device__ __forceinline__ float gelu_tanh(float x) {
  const Gate gate = gelu_gate(x);
  return x * (x < 0.0f ? gate.z * gate.q : gate.q);
}
__device__ __forceinline__ float gelu_tanh_grad(float dy, float x) {
  const Gate gate = gelu_gate(x);
  const float square = x * x > 1e6f ? 1e6f : x * x;  // where z is 0, this must not become infinite
  const float slope = 2.0f * kGeluSlope * (1.0f + 3.0f * kGeluCubic * square);
  return dy * ((x < 0.0f ? gate.z * gate.q : gate.q) + x * (gate.z * gate.q * gate.q) * slope);
}

// ---- trigonometry ----

// x = quarter * pi/2 + rest, |rest| <= pi/4 and a little; quarter modulo 4.
struct Turned {
  float rest;
  uint32_t quarter;
};

// Bits 32 * word to 32 * word + 31 of 2/pi, which is less than 1; the first word stands before the point.
__device__ __forceinline__ uint32_t two_over_pi(uint32_t word) {
  return word == 0   ? 0u
         : word == 1 ? 0xa2f9836eu
         : word == 2 ? 0x4e441529u
         : word == 3 ? 0xfc2757d1u
         : word == 4 ? 0xf534ddc0u
         : word == 5 ? 0xdb629599u
         : word == 6 ? 0x3c439041u
                     : 0xfe5163abu;
}

// After Payne and Hanek: of 2/pi, only the bits whose product with x is less than 4 quarters and not too
// small to matter. REQUIRES: x >= 2^16, finite.
__device__ __forceinline__ Turned turned_far(float x) {
  const uint32_t bits = static_cast<uint32_t>(to_bits(x));
  const uint32_t m = (bits & 0x007fffffu) | 0x00800000u;
  const uint32_t from = (bits >> 23) - 120u;  // x = m * 2^(from - 30); the window begins at bit `from`
  const uint32_t word = from >> 5, shift = from & 31u;
  const uint64_t w0 = two_over_pi(word), w1 = two_over_pi(word + 1), w2 = two_over_pi(word + 2),
                 w3 = two_over_pi(word + 3);
  const uint32_t high = static_cast<uint32_t>(((w0 << 32 | w1) << shift) >> 32),
                 middle = static_cast<uint32_t>(((w1 << 32 | w2) << shift) >> 32),
                 low = static_cast<uint32_t>(((w2 << 32 | w3) << shift) >> 32);
  const uint64_t turns = (static_cast<uint64_t>(m * high) << 32) + static_cast<uint64_t>(m) * middle +
                         (static_cast<uint64_t>(m) * low >> 32);  // in 2^-62 quarters
  const uint64_t quarter = (turns + (uint64_t{1} << 61)) >> 62;
  const double rest = static_cast<double>(static_cast<int64_t>(turns - (quarter << 62)));
  return {static_cast<float>(rest * 3.4061215800304558e-19), static_cast<uint32_t>(quarter)};  // pi/2 * 2^-62
}

__device__ __forceinline__ Turned turned(float x) {
  const float a = absolute(x);
  if (a < 70000.0f) {
    // pi/2 in three parts, after Cody and Waite.
    const float n = rintf(x * 0.63661977f);
    const float rest = fmaf(n, -5.3903025299577648e-15f,
                            fmaf(n, -3.1391647326017846e-7f, fmaf(n, -1.57079601287841796875f, x)));
    return {rest, static_cast<uint32_t>(static_cast<int32_t>(n))};
  }
  if (!(a < infinity())) return {not_a_number(), 0};
  const Turned far = turned_far(a);
  return x < 0.0f ? Turned{-far.rest, 0u - far.quarter} : far;
}

// Of |x| <= pi/4.
__device__ __forceinline__ float sin_near(float x) {
  const float z = x * x;
  const float p = fmaf(fmaf(-1.9515295891e-4f, z, 8.3321608736e-3f), z, -1.6666654611e-1f);
  return fmaf(p * z, x, x);
}
__device__ __forceinline__ float cos_near(float x) {
  const float z = x * x;
  const float p = fmaf(fmaf(2.443315711809948e-5f, z, -1.388731625493765e-3f), z, 4.166664568298827e-2f);
  return fmaf(p * z, z, fmaf(-0.5f, z, 1.0f));
}

__device__ __forceinline__ float sin(float x) {
  const Turned t = turned(x);
  const float y = (t.quarter & 1u) != 0 ? cos_near(t.rest) : sin_near(t.rest);
  return x == 0.0f ? x : (t.quarter & 2u) != 0 ? -y : y;
}

__device__ __forceinline__ float cos(float x) {
  const Turned t = turned(x);
  const float y = (t.quarter & 1u) != 0 ? sin_near(t.rest) : cos_near(t.rest);
  return ((t.quarter + 1u) & 2u) != 0 ? -y : y;
}

__device__ __forceinline__ float tan(float x) {
  const Turned t = turned(x);
  const float z = t.rest * t.rest;
  float p = 9.38540185543e-3f;
  p = fmaf(p, z, 3.11992232697e-3f);
  p = fmaf(p, z, 2.44301354525e-2f);
  p = fmaf(p, z, 5.34112807005e-2f);
  p = fmaf(p, z, 1.33387994085e-1f);
  p = fmaf(p, z, 3.33331568548e-1f);
  const float y = fmaf(p * z, t.rest, t.rest);
  return x == 0.0f ? x : (t.quarter & 1u) != 0 ? -1.0f / y : y;
}

// pi/2 and pi as a float and what it leaves out.
inline constexpr float kQuarterHigh = 1.57079637f, kQuarterLow = -4.37113883e-8f;

// arcsin x - x, of x in [0, 0.5], by its square.
__device__ __forceinline__ float asin_beyond(float x, float z) {
  float p = 4.2163199048e-2f;
  p = fmaf(p, z, 2.4181311049e-2f);
  p = fmaf(p, z, 4.5470025998e-2f);
  p = fmaf(p, z, 7.4953002686e-2f);
  p = fmaf(p, z, 1.6666752422e-1f);
  return p * z * x;
}

__device__ __forceinline__ float asin(float x) {
  const float a = absolute(x), z = 0.5f * (1.0f - a), s = sqrtf(z);
  const float large = (kQuarterHigh - 2.0f * s) + (kQuarterLow - 2.0f * asin_beyond(s, z));
  const float y = a > 0.5f ? large : a + asin_beyond(a, a * a);
  return x != x ? x : a > 1.0f ? not_a_number() : with_sign_of(y, x);
}

__device__ __forceinline__ float acos(float x) {
  const float a = absolute(x), z = 0.5f * (1.0f - a), s = sqrtf(z);
  const float outer = 2.0f * (s + asin_beyond(s, z));  // of a
  const float inner = kQuarterHigh - (x - (kQuarterLow - with_sign_of(asin_beyond(a, a * a), x)));
  return a > 0.5f ? (x > 0.0f ? outer : 2.0f * kQuarterHigh - (outer - 2.0f * kQuarterLow)) : inner;
}

__device__ __forceinline__ float atan(float x) {
  const float a = absolute(x);
  const bool far = a > 2.41421356f, middle = a > 0.41421356f;
  const float t = far ? -1.0f / a : middle ? (a - 1.0f) / (a + 1.0f) : a;
  const float z = t * t;
  float p = 8.05374449538e-2f;
  p = fmaf(p, z, -1.38776856032e-1f);
  p = fmaf(p, z, 1.99777106478e-1f);
  p = fmaf(p, z, -3.33329491539e-1f);
  const float high = far ? kQuarterHigh : middle ? 0.5f * kQuarterHigh : 0.0f;
  const float low = far ? kQuarterLow : middle ? 0.5f * kQuarterLow : 0.0f;
  return x != x ? x : with_sign_of(high + (t + fmaf(p * z, t, low)), x);
}

// ---- powers and remainders ----

// high + low, twice a float's precision.
struct Twofold {
  float high, low;
};
// REQUIRES: |a| >= |b|, or a is 0.
__device__ __forceinline__ Twofold sum_of(float a, float b) {
  const float high = a + b;
  return {high, (a - high) + b};
}

// Of a positive, finite x, to some 2^-36 of itself. With s = m / (2 + m): log(1 + m) = 2s (1 + z/3 + z^2/5 +
// ...), z = s^2, at most 0.03.
__device__ __forceinline__ Twofold log_twofold(float x) {
  const Parts parts = parts_of(x);
  const float m = parts.m, below = 2.0f + m, below_low = m - (below - 2.0f);
  const float s = m / below;
  const float s_low = fmaf(-s, below_low, fmaf(-s, below, m)) / below;
  const float z = s * s, z_low = fmaf(s, s, -z) + 2.0f * s * s_low;
  float t = fmaf(1.0f / 13.0f, z, 1.0f / 11.0f);
  t = fmaf(t, z, 1.0f / 9.0f);
  t = fmaf(t, z, 1.0f / 7.0f);
  t = fmaf(t, z, 0.2f);
  Twofold w = sum_of(0.333333343f, t * z);
  w.low -= 9.93410776e-9f;  // a third is less than its float
  const float p = z * w.high;
  const float p_low = fmaf(z, w.high, -p) + (z * w.low + z_low * w.high);
  const float q = s * p, q_low = fmaf(s, p, -q) + (s * p_low + s_low * p) + s_low;
  const Twofold half = sum_of(s, q);  // s (1 + p)
  const Twofold whole = sum_of(parts.exponent * kLog2High, 2.0f * half.high);
  return sum_of(whole.high, whole.low + fmaf(parts.exponent, kLog2Low, 2.0f * (half.low + q_low)));
}

// |x|^y of a finite x that is not 0 and a finite y.
__device__ __forceinline__ float pow_of_magnitude(float x, float y) {
  const Twofold l = log_twofold(absolute(x));
  const float high = y * l.high;
  const float low = fmaf(y, l.high, -high) + y * l.low;
  // Far out the low part may be infinite less infinite.
  return absolute(high) < 200.0f ? exp_of(high, low, 0) : exp_of(high, 0.0f, 0);
}

__device__ __forceinline__ bool is_whole(float x) { return floorf(x) == x; }
__device__ __forceinline__ bool is_odd(float x) { return is_whole(x) && !is_whole(0.5f * x); }

__device__ __forceinline__ float pow(float x, float y) {
  if (x == 1.0f || y == 0.0f) return 1.0f;
  if (x != x || y != y) return x + y;
  const float a = absolute(x);
  const bool odd = is_odd(y);  // an infinity is even
  float magnitude;
  if (absolute(y) == infinity()) {
    magnitude = a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? infinity() : 0.0f;
  } else if (a == 0.0f || a == infinity()) {
    magnitude = (a == 0.0f) == (y > 0.0f) ? 0.0f : infinity();
  } else {
    if (x < 0.0f && !is_whole(y)) return not_a_number();
    magnitude = pow_of_magnitude(x, y);
  }
  return odd ? with_sign_of(magnitude, x) : magnitude;
}

__device__ __forceinline__ int32_t exponent_of(float x) {  // of a positive x
  return x < 1.17549435e-38f ? (to_bits(x * 16777216.0f) >> 23) - 24 : to_bits(x) >> 23;
}

// The remainder with the sign of a; exact, as the remainder of two floats is a float.
__device__ __forceinline__ float mod_truncate(float a, float b) {
  float rest = absolute(a);
  const float divisor = absolute(b);
  if (!(rest < infinity()) || divisor != divisor || divisor == 0.0f) return not_a_number();
  while (rest >= divisor) {
    // By a multiple of the divisor that leaves a quotient with which a float multiplies exactly.
    const int32_t beyond = exponent_of(rest) - exponent_of(divisor) - 22;
    const int32_t scale = beyond > 0 ? beyond : 0, half = scale >> 1;
    const float step = divisor * power_of_two(half) * power_of_two(scale - half);
    rest = fmaf(-floorf(rest / step), step, rest);
    if (rest < 0.0f) rest += step;  // the quotient was rounded up
  }
  return with_sign_of(rest, a);
}

// The remainder with the sign of b.
__device__ __forceinline__ float mod_floor(float a, float b) {
  const float r = mod_truncate(a, b);
  return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
}

// ---- choices ----

__device__ __forceinline__ float relu(float x) { return x <= 0.0f ? 0.0f : x; }
__device__ __forceinline__ float sign(float x) { return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

}  // namespace weft::peer::cuda::math

#endif
