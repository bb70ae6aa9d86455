// Elementwise loops of two and three operands.
#include "peer/backend/cpu/loops/math.h"

namespace weft::peer::cpu::WEFT_ISA {
namespace {

template <typename Function, typename T, typename Out>
void zip(const ElementArgs& args) {
  const T* a = static_cast<const T*>(args.in[0]);
  const T* b = static_cast<const T*>(args.in[1]);
  Out* y = static_cast<Out*>(args.out);
  const int64_t count = args.count;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<Out>(Function::template of<T>(a[i], b[i]));
}

#define WEFT_BINARY(Name, expression)           \
  struct Name {                                 \
    template <typename T>                       \
    static WEFT_LOOP_INLINE auto of(T a, T b) { \
      return expression;                        \
    }                                           \
  }
WEFT_BINARY(Add, a + b);
WEFT_BINARY(Sub, a - b);
WEFT_BINARY(Mul, a* b);
WEFT_BINARY(Div, a / b);
WEFT_BINARY(Pow, __builtin_powf(a, b));
WEFT_BINARY(Min, (a < b || a != a) ? a : b);  // a NaN on either side wins, as in numpy
WEFT_BINARY(Max, (a > b || a != a) ? a : b);
WEFT_BINARY(ReluGrad, b > 0 ? a : T(0));
WEFT_BINARY(TanhGrad, a*(1 - b * b));
WEFT_BINARY(SigmoidGrad, a* b*(1 - b));
WEFT_BINARY(GeluGrad, gelu_grad_(a, b));
WEFT_BINARY(GeluTanhGrad, gelu_tanh_grad_(a, b));
WEFT_BINARY(Equal, a == b);
WEFT_BINARY(Less, a < b);
WEFT_BINARY(LessEqual, a <= b);
WEFT_BINARY(Greater, a > b);
WEFT_BINARY(GreaterEqual, a >= b);
WEFT_BINARY(And, a& b);
WEFT_BINARY(Or, a | b);
WEFT_BINARY(Xor, a ^ b);
#undef WEFT_BINARY

struct ModTruncate {
  template <typename T>
  static WEFT_LOOP_INLINE float of(float a, float b) {
    return __builtin_fmodf(a, b);
  }
};
struct ModFloor {
  template <typename T>
  static WEFT_LOOP_INLINE float of(float a, float b) {
    const float r = __builtin_fmodf(a, b);
    return r != 0.0f && (r < 0.0f) != (b < 0.0f) ? r + b : r;
  }
};

// Integers wrap, and dividing by zero (or the lowest number by -1) gives a number instead of a trap.
template <typename T>
struct Wrap;
template <>
struct Wrap<int32_t> {
  using Unsigned = uint32_t;
};
template <>
struct Wrap<int64_t> {
  using Unsigned = uint64_t;
};

#define WEFT_WRAPPING(Name, op)                                      \
  struct Name {                                                      \
    template <typename T>                                            \
    static WEFT_LOOP_INLINE T of(T a, T b) {                         \
      using U = typename Wrap<T>::Unsigned;                          \
      return static_cast<T>(static_cast<U>(a) op static_cast<U>(b)); \
    }                                                                \
  }
WEFT_WRAPPING(AddInt, +);
WEFT_WRAPPING(SubInt, -);
WEFT_WRAPPING(MulInt, *);
#undef WEFT_WRAPPING
struct DivInt {
  template <typename T>
  static WEFT_LOOP_INLINE T of(T a, T b) {
    if (b == 0) return 0;
    return b == -1 ? SubInt::of<T>(0, a) : a / b;
  }
};
struct RemainderInt {
  template <typename T>
  static WEFT_LOOP_INLINE T of(T a, T b) {
    return b == 0 || b == -1 ? 0 : a % b;
  }
};
struct ModInt {
  template <typename T>
  static WEFT_LOOP_INLINE T of(T a, T b) {
    const T r = RemainderInt::of<T>(a, b);
    return r != 0 && (r < 0) != (b < 0) ? r + b : r;
  }
};

template <typename T>
void negate(const ElementArgs& args) {
  const T* x = static_cast<const T*>(args.in[0]);
  T* y = static_cast<T*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = SubInt::of<T>(0, x[i]);
}
template <typename T>
void absolute(const ElementArgs& args) {
  const T* x = static_cast<const T*>(args.in[0]);
  T* y = static_cast<T*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = x[i] < 0 ? SubInt::of<T>(0, x[i]) : x[i];
}
template <typename T>
void sign(const ElementArgs& args) {
  const T* x = static_cast<const T*>(args.in[0]);
  T* y = static_cast<T*>(args.out);
  for (int64_t i = 0; i < args.count; ++i) y[i] = T(x[i] > 0) - T(x[i] < 0);
}

template <typename T>
void where(const ElementArgs& args) {
  const uint8_t* c = static_cast<const uint8_t*>(args.in[0]);
  const T* a = static_cast<const T*>(args.in[1]);
  const T* b = static_cast<const T*>(args.in[2]);
  T* y = static_cast<T*>(args.out);
#pragma omp simd
  for (int64_t i = 0; i < args.count; ++i) {
    const T yes = a[i], no = b[i];
    y[i] = c[i] != 0 ? yes : no;
  }
}

template <typename T>
void add_integers(ElementLoop* e) {
  e[0] = negate<T>, e[1] = absolute<T>, e[2] = sign<T>;
  e[3] = zip<AddInt, T, T>, e[4] = zip<SubInt, T, T>, e[5] = zip<MulInt, T, T>, e[6] = zip<DivInt, T, T>;
  e[7] = zip<Min, T, T>, e[8] = zip<Max, T, T>, e[9] = zip<ModInt, T, T>, e[10] = zip<RemainderInt, T, T>;
  e[11] = zip<Equal, T, uint8_t>, e[12] = zip<Less, T, uint8_t>, e[13] = zip<LessEqual, T, uint8_t>;
  e[14] = zip<Greater, T, uint8_t>, e[15] = zip<GreaterEqual, T, uint8_t>;
}

}  // namespace

void add_binary_loops(LoopTable& table) {
  ElementLoop* e = table.element;
  e[kAdd] = zip<Add, float, float>, e[kSub] = zip<Sub, float, float>, e[kMul] = zip<Mul, float, float>;
  e[kDiv] = zip<Div, float, float>, e[kPow] = zip<Pow, float, float>, e[kMin] = zip<Min, float, float>;
  e[kMax] = zip<Max, float, float>, e[kModFloor] = zip<ModFloor, float, float>;
  e[kModTruncate] = zip<ModTruncate, float, float>, e[kReluGrad] = zip<ReluGrad, float, float>;
  e[kTanhGrad] = zip<TanhGrad, float, float>, e[kSigmoidGrad] = zip<SigmoidGrad, float, float>;
  e[kGeluGrad] = zip<GeluGrad, float, float>, e[kGeluTanhGrad] = zip<GeluTanhGrad, float, float>;
  e[kEqual] = zip<Equal, float, uint8_t>, e[kLess] = zip<Less, float, uint8_t>;
  e[kLessEqual] = zip<LessEqual, float, uint8_t>, e[kGreater] = zip<Greater, float, uint8_t>;
  e[kGreaterEqual] = zip<GreaterEqual, float, uint8_t>;
  e[kAndB] = zip<And, uint8_t, uint8_t>, e[kOrB] = zip<Or, uint8_t, uint8_t>,
  e[kXorB] = zip<Xor, uint8_t, uint8_t>;
  e[kEqualB] = zip<Equal, uint8_t, uint8_t>;
  add_integers<int32_t>(e + kNegI32);
  add_integers<int64_t>(e + kNegI64);
  e[kWhere1] = where<uint8_t>, e[kWhere2] = where<uint16_t>, e[kWhere4] = where<uint32_t>,
  e[kWhere8] = where<uint64_t>;
}

}  // namespace weft::peer::cpu::WEFT_ISA
