#include "data/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::data {
namespace {
using dag::DType;

constexpr DType kAll[] = {DType::F32, DType::F64, DType::F16, DType::BF16, DType::I8,  DType::U8,  DType::I16,
                          DType::U16, DType::I32, DType::U32, DType::I64,  DType::U64, DType::Bool};

struct Converted {
  std::optional<size_t> misfit;
  dag::Tensor values;
};
Converted convert(const dag::Tensor& from, DType to) {
  Converted converted{{}, dag::Tensor({to, from.shape()})};
  converted.misfit = convert_elements(from.dtype(), from.bytes(), to, converted.values.mutable_bytes());
  return converted;
}
dag::Tensor numbers(DType dtype, const std::vector<double>& values) {
  return dag::from_doubles({dtype, {static_cast<int64_t>(values.size())}}, values);
}

TEST(Convert, SmallWholeNumbersAreTheSameInEveryType) {
  for (const DType from : kAll)
    for (const DType to : kAll) {
      SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)));
      const bool truths = from == DType::Bool || to == DType::Bool;
      const std::vector<double> values =
          truths ? std::vector<double>{0, 1, 1} : std::vector<double>{0, 1, 100};
      const Converted converted = convert(numbers(from, values), to);
      EXPECT_FALSE(converted.misfit.has_value());
      EXPECT_EQ(to_doubles(converted.values), values);
    }
}

TEST(Convert, WhatATypeCannotHoldIsNamed) {
  struct Case {
    DType from;
    double value;
    DType to;
  };
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  for (const auto& [from, value, to] : std::vector<Case>{{DType::F32, 0.5, DType::I64},
                                                         {DType::F64, nan, DType::I64},
                                                         {DType::F64, infinity, DType::I64},
                                                         {DType::F64, 9223372036854775808.0, DType::I64},
                                                         {DType::F32, -1, DType::U8},
                                                         {DType::F16, 256, DType::U8},
                                                         {DType::I16, 128, DType::I8},
                                                         {DType::I64, -1, DType::U64},
                                                         {DType::I64, 16777217, DType::F32},
                                                         {DType::U16, 2049, DType::F16},
                                                         {DType::F64, 1e300, DType::F32},
                                                         {DType::F32, 1e6, DType::F16},
                                                         {DType::U8, 2, DType::Bool},
                                                         {DType::F32, 0.5, DType::Bool}}) {
    const dag::Tensor tensor = numbers(from, {1, value, 1});
    SCOPED_TRACE(element_text(from, tensor.bytes(), 1) + " to " + std::string(to_string(to)));
    EXPECT_EQ(convert(tensor, to).misfit, std::optional<size_t>(1));
  }
}

TEST(Convert, ExtremesAreExact) {
  const std::vector<int64_t> values = {std::numeric_limits<int64_t>::min(), -1, int64_t{1} << 62};
  const Converted wide = convert(dag::make_tensor({3}, values), DType::F64);
  EXPECT_FALSE(wide.misfit.has_value());
  EXPECT_EQ(to_int64s(convert(wide.values, DType::I64).values), values);
  const std::vector<int64_t> large = {std::numeric_limits<int64_t>::max()};
  EXPECT_EQ(convert(dag::make_tensor({1}, large), DType::F64).misfit, std::optional<size_t>(0));
}

TEST(Convert, AFloatBecomesANarrowerOneByRounding) {
  const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const Converted converted = convert(numbers(DType::F64, {0.1, nan, -infinity}), DType::F32);
  EXPECT_FALSE(converted.misfit.has_value());
  const auto values = converted.values.as<float>();
  EXPECT_EQ(values[0], 0.1f);
  EXPECT_TRUE(std::isnan(values[1]));
  EXPECT_EQ(values[2], -std::numeric_limits<float>::infinity());
}

TEST(Convert, ElementsAreNumbersInText) {
  EXPECT_EQ(element_text(DType::U8, numbers(DType::U8, {3, 255}).bytes(), 1), "255");
  EXPECT_EQ(element_text(DType::F32, numbers(DType::F32, {0.5}).bytes(), 0), "0.5");
  EXPECT_EQ(element_text(DType::F16, numbers(DType::F16, {std::nan("")}).bytes(), 0), "nan");
}

}  // namespace
}  // namespace weft::data
