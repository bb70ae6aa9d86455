// The functions of kernels/math.cuh, as the host computes them, which is how every GPU does: right to a few
// units in the last place over all floats.
#include "peer/backend/cuda/kernels/device_code.h"
#include "peer/backend/cuda/kernels/math.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/rng.h"

namespace weft::peer {
namespace {

namespace math = cuda::math;

// The distance in units of the last place of what is right.
double units_off(float actual, double right) {
  if (std::isnan(right) || std::isnan(actual)) return std::isnan(right) == std::isnan(actual) ? 0 : 1e300;
  constexpr double kBeyond = 3.4028235677973366e38;  // rounds to an infinity
  if (std::isinf(actual) || std::abs(right) >= kBeyond)
    return actual == static_cast<float>(right) || std::abs(right) > 3.4028e38 ? 0 : 1e300;
  int exponent = 0;
  std::frexp(right, &exponent);
  return std::abs(actual - right) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

using OfFloat = float (*)(float);
using OfDouble = double (*)(double);
struct Function {
  const char* name;
  OfFloat of_float;
  OfDouble right;
  double units_max;
};

TEST(CudaMath, FunctionsAreRightToAFewUnitsInTheLastPlace) {
#define WEFT_FUNCTION(name, units)                                                             \
  Function {                                                                                   \
#name, [](float x) { return math::name(x); }, [](double x) { return std::name(x); }, units \
  }
  const Function functions[] = {WEFT_FUNCTION(exp, 1.5),
                                WEFT_FUNCTION(log, 1.5),
                                WEFT_FUNCTION(log1p, 2),
                                WEFT_FUNCTION(tanh, 2),
                                WEFT_FUNCTION(erf, 1.5),
                                WEFT_FUNCTION(sinh, 2),
                                WEFT_FUNCTION(cosh, 2),
                                WEFT_FUNCTION(asinh, 3),
                                WEFT_FUNCTION(acosh, 3),
                                WEFT_FUNCTION(atanh, 3),
                                WEFT_FUNCTION(sin, 2),
                                WEFT_FUNCTION(cos, 2),
                                WEFT_FUNCTION(tan, 4),
                                WEFT_FUNCTION(asin, 3),
                                WEFT_FUNCTION(acos, 2),
                                WEFT_FUNCTION(atan, 3),
                                {"sigmoid", [](float x) { return math::sigmoid(x); },
                                 [](double x) { return 1 / (1 + std::exp(-x)); }, 3},
                                {"softplus", [](float x) { return math::softplus(x); },
                                 [](double x) {
                                   return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))) +
                                          (std::isnan(x) ? x : 0);
                                 },
                                 3}};
#undef WEFT_FUNCTION
  constexpr uint64_t kStep = 10007;  // of all floats
  for (const Function& function : functions) {
    double worst = 0;
    float at = 0;
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += kStep) {
      const float x = std::bit_cast<float>(static_cast<uint32_t>(bits));
      const double off = units_off(function.of_float(x), function.right(x));
      if (off > worst) worst = off, at = x;
    }
    EXPECT_LE(worst, function.units_max) << function.name << " of " << at;
    RecordProperty(function.name, std::to_string(worst));
  }
}

TEST(CudaMath, PowersAndRemaindersOfRandomPairs) {
  Rng rng(1, 4);
  const auto draw = [&]() -> float {
    if (rng.below(2) == 0) return std::bit_cast<float>(rng.next_u32());
    const auto small = static_cast<float>(std::exp(20 * rng.uniform() - 10));
    return rng.below(3) == 0 ? -std::floor(small) : small;
  };
  double worst = 0;
  for (int i = 0; i < 1000000; ++i) {
    const float x = draw(), y = draw();
    const double off =
        units_off(cuda::math::pow(x, y), std::pow(static_cast<double>(x), static_cast<double>(y)));
    ASSERT_LE(off, 2) << x << " to the power of " << y;
    worst = std::max(worst, off);
    ASSERT_EQ(units_off(cuda::math::mod_truncate(x, y), std::fmod(x, y)), 0) << x << " mod " << y;
  }
  RecordProperty("pow", std::to_string(worst));
}

}  // namespace
}  // namespace weft::peer
