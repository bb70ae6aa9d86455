// What the generated kernels of elementwise ops are made of (peer/backend/cuda/fused_source.h): four elements
// of a thread at a time, casts, and arithmetic on whole numbers that neither traps nor is undefined.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"
#include "peer/backend/cuda/kernels/math.cuh"

#if defined(__CUDACC__) || defined(WEFT_CUDA_SHIM)

#if !defined(WEFT_UNROLL)
#if defined(__CUDACC__)
#define WEFT_UNROLL _Pragma("unroll")
#else
#define WEFT_UNROLL
#endif
#endif

namespace weft::peer::cuda::elements {

// Half-precision numbers, as bits.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};

// ---- memory ----

template <typename T>
struct alignas(sizeof(T) >= 4 ? 16 : 4 * sizeof(T)) Four {
  T at[4];
};

#if !defined(__CUDACC__)
template <typename T>
void need_aligned(const T* data, int64_t i) {
  if (reinterpret_cast<uintptr_t>(data + i) % alignof(Four<T>) != 0)
    shim::fault("four elements that are not aligned");
}
#endif

// REQUIRES: the array begins at a multiple of 16 bytes, and i is a multiple of 4.
template <typename T>
__device__ __forceinline__ Four<T> load(const Array<const T>& from, int64_t i) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const Four<T>*>(from.data + i);
#else
  need_aligned(from.data, i);
  return {{from[i], from[i + 1], from[i + 2], from[i + 3]}};
#endif
}
template <typename T>
__device__ __forceinline__ void store(const Array<T>& to, int64_t i, const Four<T>& values) {
#if defined(__CUDACC__)
  *reinterpret_cast<Four<T>*>(to.data + i) = values;
#else
  need_aligned(to.data, i);
  for (int j = 0; j < 4; ++j) to[i + j] = values.at[j];
#endif
}

// The same where fewer than four may be left.
template <typename T>
__device__ __forceinline__ Four<T> load(const Array<const T>& from, int64_t i, int left) {
  if (left >= 4) return load(from, i);
  Four<T> values{};
  WEFT_UNROLL
  for (int j = 0; j < 4; ++j)
    if (j < left) values.at[j] = from[i + j];
  return values;
}
template <typename T>
__device__ __forceinline__ void store(const Array<T>& to, int64_t i, const Four<T>& values, int left) {
  if (left >= 4) return store(to, i, values);
  WEFT_UNROLL
  for (int j = 0; j < 4; ++j)
    if (j < left) to[i + j] = values.at[j];
}

// ---- floats ----

// A NaN on either side wins.
__device__ __forceinline__ float smaller(float a, float b) { return a < b || a != a ? a : b; }
__device__ __forceinline__ float larger(float a, float b) { return a > b || a != a ? a : b; }
__device__ __forceinline__ float clipped(float x, float low, float high) {
  const float raised = x < low ? low : x;
  return raised > high ? high : raised;
}
__device__ __forceinline__ float square(float x) { return x * x; }
__device__ __forceinline__ float cube(float x) { return x * x * x; }

// ---- casts ----

__device__ __forceinline__ float widened(Half x) {
  const int32_t sign = static_cast<int32_t>((static_cast<uint32_t>(x.bits) & 0x8000u) << 16);
  const int32_t magnitude = x.bits & 0x7fff;
  const int32_t shifted = magnitude << 13;
  const int32_t special = shifted | 0x7f800000, normal = shifted + (112 << 23);
  const int32_t small = math::to_bits(static_cast<float>(magnitude) * 5.9604644775390625e-8f);  // 2^-24
  return math::from_bits((magnitude >= 0x7c00 ? special : (magnitude < 0x400 ? small : normal)) | sign);
}
__device__ __forceinline__ float widened(Brain x) {
  return math::from_bits(static_cast<int32_t>(static_cast<uint32_t>(x.bits) << 16));
}

// To nearest, halves to even.
__device__ __forceinline__ Half narrowed(float x, Half) {
  const uint32_t bits = static_cast<uint32_t>(math::to_bits(x));
  const uint32_t magnitude = bits & 0x7fffffffu;
  // Adding 0.5 aligns what will be subnormal, and rounds it.
  const uint32_t small = static_cast<uint32_t>(math::to_bits(math::absolute(x) + 0.5f)) - 0x3f000000u;
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // rounds beyond 65504
  half = magnitude > 0x7f800000u ? 0x7e00u : half;
  return {static_cast<uint16_t>(half | ((bits >> 16) & 0x8000u))};
}
__device__ __forceinline__ Brain narrowed(float x, Brain) {
  const uint32_t bits = static_cast<uint32_t>(math::to_bits(x));
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return {static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40u : rounded)};
}

template <typename A, typename B>
inline constexpr bool kSame = false;
template <typename A>
inline constexpr bool kSame<A, A> = true;
template <typename T>
inline constexpr bool kNarrow = kSame<T, Half> || kSame<T, Brain>;
template <typename T>
inline constexpr bool kReal = kSame<T, float> || kSame<T, double>;
template <typename T>
inline constexpr bool kUnsigned = T(-1) > T(0);

// A number beyond a whole type's range becomes its nearest end, and NaN zero.
template <typename To, typename From>
__device__ __forceinline__ To whole_of(From x) {
  // The ends as reals: the upper one is rounded up to a power of two, which is already out of range.
  constexpr int kBits = 8 * static_cast<int>(sizeof(To));
  constexpr To kHigh = kUnsigned<To> ? To(-1) : static_cast<To>(~uint64_t{0} >> (65 - kBits));
  constexpr To kLow = kUnsigned<To> ? To(0) : static_cast<To>(-static_cast<int64_t>(kHigh) - 1);
  if (x >= static_cast<From>(kHigh)) return kHigh;
  if (x <= static_cast<From>(kLow)) return kLow;
  return x != x ? To(0) : static_cast<To>(x);
}

// Bool is "not zero"; whole numbers wrap, and reach halves by way of double.
template <typename To, typename From>
__device__ __forceinline__ To converted(From x) {
  if constexpr (kSame<To, From>) {
    return x;
  } else if constexpr (kNarrow<From>) {
    return converted<To>(widened(x));
  } else if constexpr (kSame<To, bool>) {
    return x != From(0);
  } else if constexpr (kNarrow<To> && kSame<From, float>) {
    return narrowed(x, To{});
  } else if constexpr (kNarrow<To>) {
    return narrowed(static_cast<float>(static_cast<double>(x)), To{});
  } else if constexpr (kReal<From> && !kReal<To>) {
    return whole_of<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// ---- whole numbers ----

template <typename T, bool wide = (sizeof(T) > 4)>
struct Wrap {
  using Word = uint32_t;
};
template <typename T>
struct Wrap<T, true> {
  using Word = uint64_t;
};

// They wrap, and dividing by zero (or the lowest number by -1) gives a number instead of a trap.
template <typename T>
__device__ __forceinline__ T add(T a, T b) {
  using Word = typename Wrap<T>::Word;
  return static_cast<T>(static_cast<Word>(a) + static_cast<Word>(b));
}
template <typename T>
__device__ __forceinline__ T subtract(T a, T b) {
  using Word = typename Wrap<T>::Word;
  return static_cast<T>(static_cast<Word>(a) - static_cast<Word>(b));
}
template <typename T>
__device__ __forceinline__ T multiply(T a, T b) {
  using Word = typename Wrap<T>::Word;
  return static_cast<T>(static_cast<Word>(a) * static_cast<Word>(b));
}
template <typename T>
__device__ __forceinline__ T negative(T x) {
  return subtract(T(0), x);
}
template <typename T>
__device__ __forceinline__ bool is_negative(T x) {
  if constexpr (kUnsigned<T>)
    return false;
  else
    return x < T(0);
}
template <typename T>
__device__ __forceinline__ bool is_minus_one(T x) {
  return !kUnsigned<T> && x == T(-1);
}
template <typename T>
__device__ __forceinline__ T divide(T a, T b) {
  if (b == T(0)) return T(0);
  return is_minus_one(b) ? negative(a) : static_cast<T>(a / b);
}
template <typename T>
__device__ __forceinline__ T remainder_truncate(T a, T b) {
  return b == T(0) || is_minus_one(b) ? T(0) : static_cast<T>(a % b);
}
template <typename T>
__device__ __forceinline__ T remainder_floor(T a, T b) {
  const T r = remainder_truncate(a, b);
  return r != T(0) && is_negative(r) != is_negative(b) ? static_cast<T>(r + b) : r;
}
template <typename T>
__device__ __forceinline__ T magnitude(T x) {
  return is_negative(x) ? negative(x) : x;
}
template <typename T>
__device__ __forceinline__ T sign(T x) {
  return is_negative(x) ? T(-1) : T(x != T(0));
}
template <typename T>
__device__ __forceinline__ T power(T base, int64_t exponent) {
  if (exponent < 0) {  // 1 / base^|exponent|, truncated
    if (base == T(1)) return T(1);
    if (is_minus_one(base)) return exponent % 2 == 0 ? T(1) : base;
    return T(0);
  }
  T result = T(1), square = base;
  for (; exponent > 0; exponent >>= 1, square = multiply(square, square))
    if ((exponent & 1) != 0) result = multiply(result, square);
  return result;
}
template <typename T>
__device__ __forceinline__ T shifted_left(T x, T by) {
  return by < T(8 * sizeof(T)) ? static_cast<T>(static_cast<uint64_t>(x) << by) : T(0);
}
template <typename T>
__device__ __forceinline__ T shifted_right(T x, T by) {
  return by < T(8 * sizeof(T)) ? static_cast<T>(x >> by) : T(0);
}
// Bounds in int64, whatever x is; what then does not fit wraps.
template <typename T>
__device__ __forceinline__ T clipped_whole(T x, int64_t low, int64_t high) {
  const int64_t wide = static_cast<int64_t>(x), raised = wide < low ? low : wide;
  return static_cast<T>(raised > high ? high : raised);
}

}  // namespace weft::peer::cuda::elements

#endif
