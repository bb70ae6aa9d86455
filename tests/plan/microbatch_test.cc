// The size of a microbatch, chosen.
#include "plan/microbatch.h"

#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace weft::plan {
namespace {

using Times = std::map<uint32_t, double>;  // by size; what it lacks does not fit

Result<MicrobatchChoice> choose(const Times& times, uint32_t batch_size, std::vector<uint32_t>* asked = {}) {
  std::vector<uint32_t> sizes;
  for (uint32_t size = 1; size <= batch_size; size *= 2) sizes.push_back(size);
  return choose_microbatch_size(sizes, batch_size, [&](uint32_t size) -> Result<double> {
    if (asked) asked->push_back(size);
    const auto at = times.find(size);
    if (at != times.end()) return at->second;
    return fail(ErrorCode::Infeasible, std::to_string(size) + " does not fit");
  });
}

TEST(MicrobatchSize, IsThatOfTheFastestPlanWhereverTheSearchBegins) {
  for (const uint32_t best : {1u, 2u, 4u, 8u, 16u, 32u, 64u}) {
    Times times;
    for (uint32_t size = 1; size <= 64; size *= 2)
      times[size] = 0.001 * (size > best ? size / best : best / size);
    std::vector<uint32_t> asked;
    const auto choice = choose(times, 64, &asked);
    ASSERT_TRUE(choice.has_value()) << choice.error().message;
    EXPECT_EQ(choice->size, best);
    std::sort(asked.begin(), asked.end());
    EXPECT_EQ(std::adjacent_find(asked.begin(), asked.end()), asked.end()) << "each is planned once";
  }
}

TEST(MicrobatchSize, OfTwoThatAreAboutAsFastIsTheLarger) {
  EXPECT_EQ(choose({{1, 0.0100}, {2, 0.0101}, {4, 0.0102}, {8, 0.0110}}, 8)->size, 4u);
  EXPECT_EQ(choose({{1, 0.0100}, {2, 0.0105}, {4, 0.0105}, {8, 0.0110}}, 8)->size, 1u);
}

TEST(MicrobatchSize, WhatDoesNotFitIsPassedOver) {
  const auto small = choose({{1, 0.02}, {2, 0.01}}, 64);
  ASSERT_TRUE(small.has_value()) << small.error().message;
  EXPECT_EQ(small->size, 2u);
  EXPECT_EQ(small->why,
            "microbatch_size: auto takes 2, 10.0 ms a sample; 1 would take 20.0 ms; 4 cannot be planned");
  EXPECT_EQ(choose({{64, 0.5}}, 64)->size, 64u) << "an export that works with one batch alone";
}

TEST(MicrobatchSize, WhereNothingFitsTheSmallestSaysWhatIsMissing) {
  const auto choice = choose({}, 64);
  ASSERT_FALSE(choice.has_value());
  EXPECT_EQ(choice.error().code, ErrorCode::Infeasible);
  EXPECT_EQ(choice.error().message, "1 does not fit");
  const std::vector<uint32_t> sizes{4, 8};
  const auto broken = choose_microbatch_size(sizes, 64, [](uint32_t size) -> Result<double> {
    return fail(ErrorCode::Unsupported, "no " + std::to_string(size));
  });
  EXPECT_EQ(broken.error().message, "no 4") << "where it looked first";
}

}  // namespace
}  // namespace weft::plan
