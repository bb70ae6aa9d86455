// Elementwise loops of one operand, casts, and random draws.
#include "peer/backend/cpu/loops/halves.h"
#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

// Out and operand may be one array: iterations are independent either way.
template <typename Function>
void map(const ElementArgs& args) {
  const float* x = static_cast<const float*>(args.in[0]);
  float* y = static_cast<float*>(args.out);
  const int64_t count = args.count;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = Function::of(x[i]);
}

#define WEFT_UNARY(Name, expression)                                 \
  struct Name {                                                      \
    static WEFT_LOOP_INLINE float of(float x) { return expression; } \
  }
WEFT_UNARY(Neg, -x);
WEFT_UNARY(Abs, abs_(x));
WEFT_UNARY(Sign, x > 0.0f ? 1.0f : (x < 0.0f ? -1.0f : x));
WEFT_UNARY(Exp, exp_(x));
WEFT_UNARY(Log, log_(x));
WEFT_UNARY(Sqrt, __builtin_sqrtf(x));
WEFT_UNARY(Reciprocal, 1.0f / x);
WEFT_UNARY(Sin, __builtin_sinf(x));
WEFT_UNARY(Cos, __builtin_cosf(x));
WEFT_UNARY(Tan, __builtin_tanf(x));
WEFT_UNARY(Asin, __builtin_asinf(x));
WEFT_UNARY(Acos, __builtin_acosf(x));
WEFT_UNARY(Atan, __builtin_atanf(x));
WEFT_UNARY(Sinh, __builtin_sinhf(x));
WEFT_UNARY(Cosh, __builtin_coshf(x));
WEFT_UNARY(Asinh, __builtin_asinhf(x));
WEFT_UNARY(Acosh, __builtin_acoshf(x));
WEFT_UNARY(Atanh, __builtin_atanhf(x));
WEFT_UNARY(Tanh, tanh_(x));
WEFT_UNARY(Sigmoid, sigmoid_(x));
WEFT_UNARY(Relu, x <= 0.0f ? 0.0f : x);
WEFT_UNARY(Erf, erf_(x));
WEFT_UNARY(Gelu, gelu_(x));
WEFT_UNARY(GeluTanh, gelu_tanh_(x));
WEFT_UNARY(Softplus, softplus_(x));
WEFT_UNARY(Floor, __builtin_floorf(x));
WEFT_UNARY(Ceil, __builtin_ceilf(x));
WEFT_UNARY(Round, __builtin_rintf(x));
WEFT_UNARY(RoundToF16, nearest_f16(x));
WEFT_UNARY(RoundToBF16, nearest_bf16(x));
WEFT_UNARY(Square, x* x);
WEFT_UNARY(Cube, x* x* x);
#undef WEFT_UNARY

void clip(const ElementArgs& args) {
  const float* x = static_cast<const float*>(args.in[0]);
  float* y = static_cast<float*>(args.out);
  const float low = args.p0, high = args.p1;
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) {
    const float raised = x[i] < low ? low : x[i];
    y[i] = raised > high ? high : raised;
  }
}

void is_nan(const ElementArgs& args) {
  const float* x = static_cast<const float*>(args.in[0]);
  uint8_t* y = static_cast<uint8_t*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = x[i] != x[i];
}
void is_inf(const ElementArgs& args) {
  const float* x = static_cast<const float*>(args.in[0]);
  uint8_t* y = static_cast<uint8_t*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = abs_(x[i]) == __builtin_inff();
}
void not_bool(const ElementArgs& args) {
  const uint8_t* x = static_cast<const uint8_t*>(args.in[0]);
  uint8_t* y = static_cast<uint8_t*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = x[i] == 0;
}

// Philox4x32-10 (base/rng.h) with counter {position / 4, step, key}: element i takes word i % 4 of block i
// / 4. Calls use(words, skip, done, count) for runs of elements: `count` of them from `done` on take words
// `skip` and following; `words` starts on a block.
constexpr int64_t kDrawBlocks = 64;

template <typename Use>
WEFT_LOOP_INLINE void with_draws(const ElementArgs& args, Use use) {
  uint32_t words[4 * kDrawBlocks];
  int64_t done = 0;
  while (done < args.count) {
    const uint64_t first = (args.position + static_cast<uint64_t>(done)) / 4;
    for (int64_t b = 0; b < kDrawBlocks; ++b) {
      const uint64_t block = first + static_cast<uint64_t>(b);
      uint32_t c0 = static_cast<uint32_t>(block), c1 = static_cast<uint32_t>(block >> 32), c2 = args.step,
               c3 = args.key;
      uint32_t k0 = static_cast<uint32_t>(args.seed), k1 = static_cast<uint32_t>(args.seed >> 32);
#pragma GCC unroll 10
      for (int round = 0; round < 10; ++round) {
        const uint64_t p = uint64_t{0xD2511F53u} * c0;
        const uint64_t q = uint64_t{0xCD9E8D57u} * c2;
        c0 = static_cast<uint32_t>(q >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(q);
        c2 = static_cast<uint32_t>(p >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(p);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
      }
      words[4 * b + 0] = c0;
      words[4 * b + 1] = c1;
      words[4 * b + 2] = c2;
      words[4 * b + 3] = c3;
    }
    const int64_t skip = static_cast<int64_t>((args.position + static_cast<uint64_t>(done)) % 4);
    int64_t end = done + 4 * kDrawBlocks - skip;
    if (end > args.count) end = args.count;
    use(words, skip, done, end - done);
    done = end;
  }
}

void dropout(const ElementArgs& args) {
  const float* x = static_cast<const float*>(args.in[0]);
  float* y = static_cast<float*>(args.out);
  const uint32_t threshold = args.threshold;
  const float scale = args.p0;
  with_draws(args, [&](const uint32_t* words, int64_t skip, int64_t done, int64_t count) {
    const uint32_t* draws = words + skip;
    const float* source = x + done;
    float* target = y + done;
#pragma omp simd
    for (int64_t i = 0; i < count; ++i) {
      const float kept = source[i] * scale;
      target[i] = draws[i] >= threshold ? kept : 0.0f;
    }
  });
}

// The upper 24 bits, in [0, 1).
WEFT_LOOP_INLINE float fraction(uint32_t draw) { return static_cast<float>(draw >> 8) * 0x1p-24f; }

void random_uniform(const ElementArgs& args) {
  const float *low = static_cast<const float*>(args.in[0]), *high = static_cast<const float*>(args.in[1]);
  float* y = static_cast<float*>(args.out);
  with_draws(args, [&](const uint32_t* words, int64_t skip, int64_t done, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      const float from = low[done + i];
      y[done + i] = from + (high[done + i] - from) * fraction(words[skip + i]);
    }
  });
}

// Box-Muller: two numbers of two draws.
void random_normal(const ElementArgs& args) {
  const float *mean = static_cast<const float*>(args.in[0]), *scale = static_cast<const float*>(args.in[1]);
  float* y = static_cast<float*>(args.out);
  with_draws(args, [&](const uint32_t* words, int64_t skip, int64_t done, int64_t count) {
    float normals[4 * kDrawBlocks];
    for (int64_t k = 0; k < 4 * kDrawBlocks; k += 2) {
      const float radius = __builtin_sqrtf(-2.0f * log_(fraction(words[k]) + 0x1p-24f));
      const float angle = 6.28318530717958648f * fraction(words[k + 1]);
      normals[k] = radius * __builtin_cosf(angle);
      normals[k + 1] = radius * __builtin_sinf(angle);
    }
    for (int64_t i = 0; i < count; ++i) y[done + i] = mean[done + i] + scale[done + i] * normals[skip + i];
  });
}

// Bool is "not zero"; a float beyond an integer's range becomes its nearest end, and NaN zero; integers wrap.
template <typename From, typename To, bool to_bool>
WEFT_LOOP_INLINE To converted(From x) {
  if constexpr (to_bool) {
    return x != From(0);
  } else if constexpr (static_cast<From>(0.5) != From(0) && static_cast<To>(0.5) == To(0)) {
    // The ends as floats: the upper one is rounded up to a power of two, which is already out of range.
    constexpr bool kUnsigned = To(-1) > To(0);
    constexpr To kHigh = kUnsigned ? To(-1) : static_cast<To>(INT64_MAX >> (64 - 8 * sizeof(To)));
    constexpr To kLow = kUnsigned ? To(0) : static_cast<To>(INT64_MIN >> (64 - 8 * sizeof(To)));
    if constexpr (sizeof(To) < 4) {
      // By way of 32 bits and without branches: such loops become vector code.
      const From low = static_cast<From>(kLow), high = static_cast<From>(kHigh);
      From kept = x < low ? low : x;
      kept = kept > high ? high : kept;
      kept = x != x ? From(0) : kept;
      return static_cast<To>(static_cast<int32_t>(kept));
    } else {
      if (x >= static_cast<From>(kHigh)) return kHigh;
      if (x <= static_cast<From>(kLow)) return kLow;
      return x != x ? To(0) : static_cast<To>(x);
    }
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To, bool to_bool>
void cast(const ElementArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  To* y = static_cast<To*>(args.out);
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) y[i] = converted<From, To, to_bool>(x[i]);
}

// To nearest, halves to even.
WEFT_LOOP_INLINE void narrow(float x, Half& y) {
  const uint32_t bits = static_cast<uint32_t>(float_to_bits(x));
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 aligns what will be subnormal, and rounds it.
  const uint32_t small = static_cast<uint32_t>(float_to_bits(abs_(x) + 0.5f)) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds beyond 65504
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  y.bits = static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u));
}
WEFT_LOOP_INLINE void narrow(float x, Brain& y) {
  const uint32_t bits = static_cast<uint32_t>(float_to_bits(x));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  y.bits = static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded);
}

template <typename From, typename To, bool to_bool>
void widen(const ElementArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  To* y = static_cast<To*>(args.out);
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) y[i] = converted<float, To, to_bool>(widened(x[i]));
}

// Integers by way of double, which is how the reference rounds them.
WEFT_LOOP_INLINE float as_float(float x) { return x; }
template <typename From>
WEFT_LOOP_INLINE float as_float(From x) {
  return static_cast<float>(static_cast<double>(x));
}
template <typename From, typename To>
void narrow_all(const ElementArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  To* y = static_cast<To*>(args.out);
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) narrow(as_float(x[i]), y[i]);
}
template <typename From, typename To>
void between_halves(const ElementArgs& args) {
  const From* x = static_cast<const From*>(args.in[0]);
  To* y = static_cast<To*>(args.out);
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) narrow(widened(x[i]), y[i]);
}

template <typename From>
void add_casts(LoopTable& table, int row) {
  ElementLoop* at = table.element + kCastFirst + kCastTypes * row;
  at[0] = cast<From, float, false>;
  at[1] = cast<From, uint8_t, true>;
  at[2] = cast<From, int32_t, false>;
  at[3] = cast<From, int64_t, false>;
  at[4] = cast<From, uint8_t, false>;
  at[5] = narrow_all<From, Half>;
  at[6] = narrow_all<From, Brain>;
  at[7] = cast<From, int8_t, false>;
}
template <typename From>
void add_half_casts(LoopTable& table, int row) {
  ElementLoop* at = table.element + kCastFirst + kCastTypes * row;
  at[0] = widen<From, float, false>;
  at[1] = widen<From, uint8_t, true>;
  at[2] = widen<From, int32_t, false>;
  at[3] = widen<From, int64_t, false>;
  at[4] = widen<From, uint8_t, false>;
  at[5] = between_halves<From, Half>;
  at[6] = between_halves<From, Brain>;
  at[7] = widen<From, int8_t, false>;
}

}  // namespace

void add_unary_loops(LoopTable& table) {
  ElementLoop* e = table.element;
  e[kNeg] = map<Neg>, e[kAbs] = map<Abs>, e[kSign] = map<Sign>, e[kExp] = map<Exp>, e[kLog] = map<Log>;
  e[kSqrt] = map<Sqrt>, e[kReciprocal] = map<Reciprocal>, e[kSin] = map<Sin>, e[kCos] = map<Cos>,
  e[kTan] = map<Tan>;
  e[kAsin] = map<Asin>, e[kAcos] = map<Acos>, e[kAtan] = map<Atan>, e[kSinh] = map<Sinh>,
  e[kCosh] = map<Cosh>;
  e[kAsinh] = map<Asinh>, e[kAcosh] = map<Acosh>, e[kAtanh] = map<Atanh>, e[kTanh] = map<Tanh>;
  e[kSigmoid] = map<Sigmoid>, e[kRelu] = map<Relu>, e[kErf] = map<Erf>, e[kGelu] = map<Gelu>;
  e[kGeluTanh] = map<GeluTanh>, e[kSoftplus] = map<Softplus>, e[kFloor] = map<Floor>, e[kCeil] = map<Ceil>;
  e[kRoundToF16] = map<RoundToF16>, e[kRoundToBF16] = map<RoundToBF16>;
  e[kRound] = map<Round>, e[kSquare] = map<Square>, e[kCube] = map<Cube>;
  e[kClip] = clip, e[kDropout] = dropout, e[kRandomUniform] = random_uniform;
  e[kRandomNormal] = random_normal, e[kIsNaN] = is_nan, e[kIsInf] = is_inf, e[kNotB] = not_bool;
  add_casts<float>(table, 0);
  add_casts<uint8_t>(table, 1);
  add_casts<int32_t>(table, 2);
  add_casts<int64_t>(table, 3);
  add_casts<uint8_t>(table, 4);
  add_half_casts<Half>(table, 5);
  add_half_casts<Brain>(table, 6);
  add_casts<int8_t>(table, 7);
}

}  // namespace weft::peer::cpu::WEFT_ISA
