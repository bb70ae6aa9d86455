// Elementwise ops over broadcast operands.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "peer/backend/reference/kernels.h"

namespace weft::peer::reference {
namespace {

// ---- one operand ----

double gelu(double x, bool approximate) {
  if (!approximate) return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

double gelu_slope(double x, bool approximate) {
  if (!approximate) {
    const double density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    return 0.5 * (1 + std::erf(x / std::numbers::sqrt2)) + x * density;
  }
  const double scale = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(scale * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
}

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }  // NaN and the zeros stay
double clipped(double x, double low, double high) {
  return std::isnan(x) ? x : std::min(std::max(x, low), high);
}
double nearest_half(double x, DType dtype) {
  const auto narrow = static_cast<float>(x);
  return dtype == DType::F16 ? dag::float_from_f16(dag::f16_from_float(narrow))
                             : dag::float_from_bf16(dag::bf16_from_float(narrow));
}
double low_of(const Call& c) {
  return c.attributes.get_double(Attr::Min, -std::numeric_limits<double>::infinity());
}
double high_of(const Call& c) {
  return c.attributes.get_double(Attr::Max, std::numeric_limits<double>::infinity());
}

double unary(const Call& c, double x) {
  switch (c.kind) {
    case OpKind::Neg:
      return -x;
    case OpKind::Abs:
      return std::abs(x);
    case OpKind::Sign:
      return sign(x);
    case OpKind::Exp:
      return std::exp(x);
    case OpKind::Log:
      return std::log(x);
    case OpKind::Sqrt:
      return std::sqrt(x);
    case OpKind::Reciprocal:
      return 1 / x;
    case OpKind::Sin:
      return std::sin(x);
    case OpKind::Cos:
      return std::cos(x);
    case OpKind::Tan:
      return std::tan(x);
    case OpKind::Asin:
      return std::asin(x);
    case OpKind::Acos:
      return std::acos(x);
    case OpKind::Atan:
      return std::atan(x);
    case OpKind::Sinh:
      return std::sinh(x);
    case OpKind::Cosh:
      return std::cosh(x);
    case OpKind::Asinh:
      return std::asinh(x);
    case OpKind::Acosh:
      return std::acosh(x);
    case OpKind::Atanh:
      return std::atanh(x);
    case OpKind::Tanh:
      return std::tanh(x);
    case OpKind::Sigmoid:
      return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
    case OpKind::Relu:
      return x < 0 ? 0 : x;
    case OpKind::Erf:
      return std::erf(x);
    case OpKind::Gelu:
      return gelu(x, c.attributes.get_int(Attr::Approximate) != 0);
    case OpKind::Softplus:
      return (x > 0 ? x : 0) + std::log1p(std::exp(-std::abs(x)));
    case OpKind::Floor:
      return std::floor(x);
    case OpKind::Ceil:
      return std::ceil(x);
    case OpKind::Round:
    case OpKind::RoundThrough:
      return std::nearbyint(x);  // the default rounding mode is to even
    case OpKind::RoundToHalf:
      return nearest_half(x, static_cast<DType>(c.attributes.get_int(Attr::DType)));
    case OpKind::Clip:
      return clipped(x, low_of(c), high_of(c));
    default:
      WEFT_CHECK_MSG(false, "not a unary op of floats");
      return 0;
  }
}

int64_t negated(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }

int64_t unary_whole(const Call& c, int64_t x) {
  switch (c.kind) {
    case OpKind::Neg:
      return negated(x);
    case OpKind::Abs:
      return x < 0 ? negated(x) : x;
    case OpKind::Sign:
      return (x > 0) - (x < 0);
    case OpKind::Not:
      return x == 0;
    case OpKind::BitNot:
      return ~x;
    case OpKind::Clip: {
      // A bound beyond int64's range does not bind; one inside it is compared as a double only against
      // itself.
      const double low = std::ceil(low_of(c)), high = std::floor(high_of(c));
      constexpr double kEdge = 9223372036854775808.0;
      if (low >= -kEdge && low < kEdge) x = std::max(x, static_cast<int64_t>(low));
      if (high >= -kEdge && high < kEdge) x = std::min(x, static_cast<int64_t>(high));
      return x;
    }
    default:
      WEFT_CHECK_MSG(false, "not a unary op of integers");
      return 0;
  }
}

// Out of range and NaN as dag::from_doubles has them: saturate, zero.
int64_t whole_from(DType dtype, double x) {
  if (dtype == DType::Bool) return x != 0;
  const dag::Tensor tensor = dag::make_scalar(dtype, x);
  return dag::to_int64s(tensor)[0];
}

void run_cast(const Call& c) {
  const RefValue& x = c.in(0);
  RefValue& y = c.out();
  const DType to = y.spec.dtype;
  for (size_t i = 0; i < at(x.count()); ++i) {
    if (x.is_real() && y.is_real()) y.reals[i] = rounded(to, x.reals[i]);
    if (x.is_real() && !y.is_real()) y.wholes[i] = whole_from(to, x.reals[i]);
    if (!x.is_real() && y.is_real()) y.reals[i] = rounded(to, static_cast<double>(x.wholes[i]));
    if (!x.is_real() && !y.is_real())
      y.wholes[i] = to == DType::Bool ? x.wholes[i] != 0 : wrapped(to, x.wholes[i]);
  }
}

void run_unary(const Call& c) {
  const RefValue& x = c.in(0);
  RefValue& y = c.out();
  for (size_t i = 0; i < at(x.count()); ++i) {
    if (c.kind == OpKind::IsNaN)
      y.wholes[i] = std::isnan(x.reals[i]);
    else if (c.kind == OpKind::IsInf)
      y.wholes[i] = std::isinf(x.reals[i]);
    else if (x.is_real())
      y.reals[i] = unary(c, x.reals[i]);
    else
      y.wholes[i] = wrapped(y.spec.dtype, unary_whole(c, x.wholes[i]));
  }
}

// ---- two operands ----

double remainder(const Call& c, double a, double b) {
  const double r = std::fmod(a, b);
  const bool c_style = c.attributes.get_int(Attr::Fmod) != 0;
  return !c_style && r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

double binary(const Call& c, double a, double b) {
  switch (c.kind) {
    case OpKind::Add:
      return a + b;
    case OpKind::Sub:
      return a - b;
    case OpKind::Mul:
      return a * b;
    case OpKind::Div:
      return a / b;
    case OpKind::Pow:
      return std::pow(a, b);
    case OpKind::Min:
      return std::isnan(a) || a < b ? a : b;
    case OpKind::Max:
      return std::isnan(a) || a > b ? a : b;
    case OpKind::Mod:
      return remainder(c, a, b);
    case OpKind::ReluGrad:
      return b > 0 ? a : 0;
    case OpKind::TanhGrad:
      return a * (1 - b * b);
    case OpKind::SigmoidGrad:
      return a * b * (1 - b);
    case OpKind::GeluGrad:
      return a * gelu_slope(b, c.attributes.get_int(Attr::Approximate) != 0);
    default:
      WEFT_CHECK_MSG(false, "not a binary op of floats");
      return 0;
  }
}

// Unsigned arithmetic wraps where signed would be undefined.
int64_t power(int64_t base, int64_t exponent) {
  if (exponent < 0) {  // 1 / base^|exponent|, truncated
    if (base == 1) return 1;
    if (base == -1) return exponent % 2 == 0 ? 1 : -1;
    return 0;
  }
  uint64_t result = 1, square = static_cast<uint64_t>(base);
  for (; exponent > 0; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return static_cast<int64_t>(result);
}

// U64 values beyond int64 are out of the reference's range; everything else is exact.
int64_t binary_whole(const Call& c, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
  switch (c.kind) {
    case OpKind::Add:
      return static_cast<int64_t>(x + y);
    case OpKind::Sub:
      return static_cast<int64_t>(x - y);
    case OpKind::Mul:
      return static_cast<int64_t>(x * y);
    case OpKind::Div:
      return b == 0 ? 0 : b == -1 ? negated(a) : a / b;
    case OpKind::Pow:
      return power(a, b);
    case OpKind::Min:
      return std::min(a, b);
    case OpKind::Max:
      return std::max(a, b);
    case OpKind::Mod: {
      if (b == 0 || b == -1) return 0;
      const int64_t r = a % b;
      return c.attributes.get_int(Attr::Fmod) == 0 && r != 0 && (r < 0) != (b < 0) ? r + b : r;
    }
    case OpKind::And:
      return (a != 0) && (b != 0);
    case OpKind::Or:
      return (a != 0) || (b != 0);
    case OpKind::Xor:
      return (a != 0) != (b != 0);
    case OpKind::BitAnd:
      return a & b;
    case OpKind::BitOr:
      return a | b;
    case OpKind::BitXor:
      return a ^ b;
    case OpKind::ShiftLeft:  // what leaves a narrower width is cut off by wrapped()
      return y < 64 ? static_cast<int64_t>(x << y) : 0;
    case OpKind::ShiftRight:
      return y < 64 ? static_cast<int64_t>(x >> y) : 0;
    default:
      WEFT_CHECK_MSG(false, "not a binary op of integers");
      return 0;
  }
}

template <typename T>
bool compare(OpKind kind, T a, T b) {
  switch (kind) {
    case OpKind::Equal:
      return a == b;
    case OpKind::Less:
      return a < b;
    case OpKind::LessEqual:
      return a <= b;
    case OpKind::Greater:
      return a > b;
    case OpKind::GreaterEqual:
      return a >= b;
    default:
      WEFT_CHECK_MSG(false, "not a comparison");
      return false;
  }
}

bool is_comparison(OpKind kind) { return kind >= OpKind::Equal && kind <= OpKind::GreaterEqual; }

double real_at(const RefValue& value, size_t i) {
  return value.is_real() ? value.reals[i] : static_cast<double>(value.wholes[i]);
}

void run_binary(const Call& c) {
  const RefValue &a = c.in(0), &b = c.in(1);
  RefValue& y = c.out();
  const Shape& shape = y.spec.shape;
  const std::array<Shape, 2> strides{broadcast_strides(a.spec.shape, shape),
                                     broadcast_strides(b.spec.shape, shape)};
  walk<2>(shape, strides, {0, 0}, [&](size_t i, const std::array<int64_t, 2>& from) {
    const size_t ia = at(from[0]), ib = at(from[1]);
    if (is_comparison(c.kind))
      y.wholes[i] = a.is_real() ? compare(c.kind, a.reals[ia], b.reals[ib])
                                : compare(c.kind, a.wholes[ia], b.wholes[ib]);
    else if (y.is_real())
      y.reals[i] = binary(c, a.reals[ia], real_at(b, ib));
    else if (b.is_real())  // an integer to a float power
      y.wholes[i] = whole_from(y.spec.dtype, std::pow(static_cast<double>(a.wholes[ia]), b.reals[ib]));
    else
      y.wholes[i] = wrapped(y.spec.dtype, binary_whole(c, a.wholes[ia], b.wholes[ib]));
  });
}

void run_where(const Call& c) {
  const RefValue &condition = c.in(0), &a = c.in(1), &b = c.in(2);
  RefValue& y = c.out();
  const Shape& shape = y.spec.shape;
  const std::array<Shape, 3> strides{broadcast_strides(condition.spec.shape, shape),
                                     broadcast_strides(a.spec.shape, shape),
                                     broadcast_strides(b.spec.shape, shape)};
  walk<3>(shape, strides, {0, 0, 0}, [&](size_t i, const std::array<int64_t, 3>& from) {
    const bool first = condition.wholes[at(from[0])] != 0;
    const RefValue& chosen = first ? a : b;
    const size_t k = at(first ? from[1] : from[2]);
    if (y.is_real())
      y.reals[i] = chosen.reals[k];
    else
      y.wholes[i] = chosen.wholes[k];
  });
}

}  // namespace

void run_elementwise(const Call& call) {
  if (call.kind == OpKind::Cast) return run_cast(call);
  if (call.kind == OpKind::Where) return run_where(call);
  if (call.inputs.size() == 1) return run_unary(call);
  run_binary(call);
}

}  // namespace weft::peer::reference
