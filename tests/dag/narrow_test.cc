#include "dag/narrow.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "base/rng.h"

namespace weft::dag {
namespace {

Tensor of(DType dtype, const std::vector<int64_t>& values) {
  return from_int64s({dtype, {static_cast<int64_t>(values.size())}}, values);
}

TEST(Narrow, TakesTheShortestTypeThatHoldsAllOfThem) {
  const auto type = [](const std::vector<int64_t>& values, DType dtype = DType::I64) {
    return narrowed(of(dtype, values)).dtype();
  };
  EXPECT_EQ(type({0, 255}), DType::U8);
  EXPECT_EQ(type({-1, 127}), DType::I8);
  EXPECT_EQ(type({0, 50'256}), DType::U16);
  EXPECT_EQ(type({-100, 30'000}), DType::I16);
  EXPECT_EQ(type({-100, 50'256}), DType::I32) << "masked labels of a large vocabulary";
  EXPECT_EQ(type({0, 65'536}), DType::I32);
  EXPECT_EQ(type({0, int64_t{1} << 31}), DType::I64);
  EXPECT_EQ(type({std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}), DType::I64);
  EXPECT_EQ(type({0, 65'536}, DType::I32), DType::I32);
  EXPECT_EQ(type({7}, DType::I32), DType::U8);
  EXPECT_EQ(type({7}, DType::U64), DType::U64) << "no data are";
  EXPECT_EQ(type({}), DType::I64);
  EXPECT_EQ(narrowed(make_tensor({1}, std::vector<float>{1})).dtype(), DType::F32);
}

TEST(Narrow, IsTheSameNumbersAgain) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 81);
    const DType dtype = rng.below(2) == 0 ? DType::I64 : DType::I32;
    const uint64_t bits = 1 + rng.below(dtype == DType::I64 ? 63 : 31);
    std::vector<int64_t> values(rng.below(20));
    for (int64_t& value : values) {
      value = static_cast<int64_t>(rng.below(uint64_t{1} << bits));
      if (seed % 3 == 0 && rng.below(2) == 0) value = -value;
    }
    const Tensor wide = of(dtype, values);
    const auto back = widened(narrowed(wide), wide.spec());
    ASSERT_TRUE(back.has_value()) << back.error().message;
    EXPECT_EQ(back->spec(), wide.spec());
    EXPECT_EQ(to_int64s(*back), values);
  }
}

TEST(Narrow, WhatIsNoShorterFormIsAnError) {
  const TensorSpec wanted{DType::I64, {2}};
  for (const Tensor& bad :
       {of(DType::U8, {1, 2, 3}), of(DType::U32, {1, 2}), of(DType::U64, {1, 2}), of(DType::Bool, {1, 0}),
        make_tensor({2}, std::vector<float>{1, 2}), of(DType::U8, {1, 2}).reshaped({1, 2})}) {
    const auto made = widened(bad, wanted);
    ASSERT_FALSE(made.has_value()) << to_string(bad.spec());
    EXPECT_EQ(made.error().code, ErrorCode::InvalidArgument);
  }
  EXPECT_FALSE(widened(of(DType::I64, {1, 2}), {DType::I32, {2}}).has_value()) << "it may not fit";
  EXPECT_FALSE(widened(of(DType::U8, {1, 2}), {DType::F32, {2}}).has_value());
}

}  // namespace
}  // namespace weft::dag
