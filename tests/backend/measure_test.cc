#include "peer/service/measure.h"

#include <gtest/gtest.h>

#include <cmath>

#include "peer/backend/cpu/cpu_backend.h"

namespace weft::peer {
namespace {

TEST(MeasureRates, AreNumbersThatAPlanCanUse) {
  auto backend = make_cpu_backend({.threads = 1, .pin = false});
  ASSERT_TRUE(backend.has_value());
  const auto rates = measure_rates(**backend);
  ASSERT_TRUE(rates.has_value()) << rates.error().message;
  for (const double rate : {rates->matmul_flops_per_second, rates->convolution_flops_per_second,
                            rates->memory_bytes_per_second}) {
    EXPECT_TRUE(std::isfinite(rate));
    EXPECT_GT(rate, 1e3);
    EXPECT_LT(rate, 1e18);
  }
  for (const plan::UnitRates& unit : rates->units)
    for (const double rate : {unit.small_flops_per_second, unit.flops_per_second, unit.small_bytes_per_second,
                              unit.bytes_per_second}) {
      EXPECT_TRUE(std::isfinite(rate));
      EXPECT_GE(rate, 1);
      EXPECT_LE(rate, 1e18);
    }
  EXPECT_GT(rates->kernel_seconds, 0);
  EXPECT_TRUE(std::isfinite(rates->kernel_seconds));
}

}  // namespace
}  // namespace weft::peer
