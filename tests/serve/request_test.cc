// Requests from outside: whatever numbers stand in them, what passes fits the model and the memory.
#include "serve/request.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

namespace weft::serve {
namespace {

RequestLimits small() { return {10, 50}; }  // context, vocabulary

bool always(int64_t) { return true; }

TEST(RequestLimits, TokensAreThoseOfTheModel) {
  EXPECT_TRUE(small().check({.prompt = {0, 49}}, always));
  for (const int64_t token : {int64_t{-1}, int64_t{50}, INT64_MIN, INT64_MAX}) {
    const Status status = small().check({.prompt = {1, token}}, always);
    ASSERT_FALSE(status) << token;
    EXPECT_EQ(status.error().code, ErrorCode::InvalidArgument);
    EXPECT_NE(status.error().message.find("token " + std::to_string(token)), std::string::npos);
  }
  const Status empty = small().check({}, always);
  ASSERT_FALSE(empty);
  EXPECT_EQ(empty.error().code, ErrorCode::InvalidArgument);
}

TEST(RequestLimits, PromptAndAnswerFitTheContext) {
  for (size_t prompt = 1; prompt <= 12; ++prompt)
    for (const int64_t tokens_max : {INT64_MIN, int64_t{-1}, int64_t{0}, int64_t{1}, int64_t{5}, int64_t{9},
                                     int64_t{10}, INT64_MAX - 1, INT64_MAX}) {
      const Request request{.prompt = std::vector<int64_t>(prompt, 1), .tokens_max = tokens_max};
      const bool fits = prompt <= 10 && tokens_max <= 10 - static_cast<int64_t>(prompt);
      const Status status = small().check(request, always);
      ASSERT_EQ(static_cast<bool>(status), fits) << prompt << " and " << tokens_max;
      if (fits) {
        EXPECT_EQ(small().positions_of(request),
                  tokens_max < 0 ? 10 : static_cast<int64_t>(prompt) + tokens_max);
      } else {
        EXPECT_EQ(status.error().code, ErrorCode::OutOfRange);
      }
    }
}

TEST(RequestLimits, TellsTheLargestThatFitsTheMemory) {
  for (int64_t most = 0; most <= 10; ++most) {
    const auto fits = [most](int64_t positions) { return positions <= most; };
    for (int64_t positions = 1; positions <= 10; ++positions) {
      const Status status = small().check({.prompt = {1}, .tokens_max = positions - 1}, fits);
      ASSERT_EQ(static_cast<bool>(status), positions <= most);
      if (status) continue;
      EXPECT_EQ(status.error().code, ErrorCode::OutOfRange);
      EXPECT_TRUE(status.error().message.ends_with("that fits has " + std::to_string(most)))
          << status.error().message;
    }
  }
}

}  // namespace
}  // namespace weft::serve
