#include "base/rng.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace weft {
namespace {

// The known-answer vectors that come with Random123's distribution, philox4x32 with 10 rounds.
TEST(Philox, MatchesPublishedVectors) {
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const uint32_t ones = 0xffffffff;
  EXPECT_EQ(philox({ones, ones, ones, ones}, {ones, ones}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Rng, SameSeedAndStreamGiveTheSameDraws) {
  Rng a(42, 1), b(42, 1), other_stream(42, 2), other_seed(43, 1);
  int equal_stream = 0, equal_seed = 0;
  for (int i = 0; i < 1000; ++i) {
    const uint32_t draw = a.next_u32();
    EXPECT_EQ(draw, b.next_u32());
    equal_stream += draw == other_stream.next_u32();
    equal_seed += draw == other_seed.next_u32();
  }
  EXPECT_LE(equal_stream, 1);
  EXPECT_LE(equal_seed, 1);
}

TEST(Rng, BelowStaysBelowAndReachesAll) {
  Rng rng(1, 1);
  std::set<uint64_t> seen;
  for (int i = 0; i < 1000; ++i) {
    const uint64_t draw = rng.below(7);
    ASSERT_LT(draw, 7u);
    seen.insert(draw);
  }
  EXPECT_EQ(seen.size(), 7u);
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  Rng rng(5, 0);
  double sum = 0, squares = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = rng.normal();
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
}

TEST(EpochPermutation, VisitsEverySampleOnce) {
  auto order = epoch_permutation(9, 3, 1000);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
  std::sort(order.begin(), order.end());
  for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(order[i], i);
}

TEST(EpochPermutation, DependsOnSeedAndEpoch) {
  const auto order = epoch_permutation(9, 3, 100);
  EXPECT_EQ(order, epoch_permutation(9, 3, 100));
  EXPECT_NE(order, epoch_permutation(9, 4, 100));
  EXPECT_NE(order, epoch_permutation(8, 3, 100));
  EXPECT_TRUE(epoch_permutation(1, 1, 0).empty());
}

}  // namespace
}  // namespace weft
