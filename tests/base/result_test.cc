#include "base/result.h"

#include <gtest/gtest.h>

namespace weft {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return fail(ErrorCode::InvalidArgument, std::to_string(value) + " is odd");
  return value / 2;
}
Result<int> quarter(int value) {
  WEFT_TRY(const int once, half(value));
  WEFT_TRY(const int twice, half(once));
  return twice;
}
Status is_even(int value) {
  WEFT_TRY_STATUS(half(value));
  return {};
}

TEST(Result, TryReturnsTheFirstError) {
  EXPECT_EQ(quarter(8).value(), 2);
  ASSERT_FALSE(quarter(6).has_value());
  EXPECT_EQ(quarter(6).error().message, "3 is odd");
  EXPECT_FALSE(is_even(3).has_value());
  EXPECT_TRUE(is_even(4).has_value());
}

TEST(Result, ContextGoesInFront) {
  const Error error{ErrorCode::NotFound, "no such file"};
  EXPECT_EQ(error.within("job.yaml").message, "job.yaml: no such file");
  EXPECT_EQ(error.within("job.yaml").code, ErrorCode::NotFound);
  EXPECT_EQ(to_string(error.code), "NotFound");
}

TEST(ErrorCodes, EachHasANameAndTheLastIsTheLast) {
  const int last = static_cast<int>(kErrorCodeLast);
  for (int code = 0; code <= last; ++code) EXPECT_NE(to_string(static_cast<ErrorCode>(code)), "Unknown");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(last + 1)), "Unknown") << "kErrorCodeLast is not the last";
}

}  // namespace
}  // namespace weft
