// What is out of all proportion among what replicas have sent.
#include "replicas/norm_guard.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/rng.h"

namespace weft::replicas {
namespace {

using Norms = std::vector<std::optional<double>>;

TEST(NormGuard, OfFourAndMoreComparesWithTheMiddleOfAll) {
  NormGuard guard;
  EXPECT_EQ(guard.look_at({1.0, 1.2, 0.8, 9.0}, 0, 10), std::nullopt) << "within the bound";
  const auto outlier = guard.look_at({1.0, 1.2, 0.8, 50.0}, 0, 10);
  ASSERT_TRUE(outlier.has_value());
  EXPECT_EQ(outlier->replica, 3u);
  EXPECT_DOUBLE_EQ(outlier->ratio, 50.0) << "of the lower one of two in the middle";
  EXPECT_EQ(guard.look_at({1.0, 1.2, 40.0, 50.0, 0.7}, 0, 10)->replica, 3u) << "the worst first";
  EXPECT_EQ(guard.look_at({1.0, 1.2, 0.8, 50.0}, 3, 10), std::nullopt) << "nobody accuses itself";
  EXPECT_EQ(guard.look_at({0.0, 0.0, 0.0, 50.0}, 0, 10), std::nullopt) << "there is nothing to compare with";
}

TEST(NormGuard, OfFewerComparesWithWhatEachSentBefore) {
  NormGuard guard;
  for (int round = 0; round < 9; ++round)
    ASSERT_EQ(guard.look_at({1.0, round == 3 ? 500.0 : 2.0}, 0, 10), std::nullopt) << "the first ten pass";
  ASSERT_EQ(guard.look_at({1.0, 2.0}, 0, 10), std::nullopt);
  const auto outlier = guard.look_at({1.0, 30.0}, 0, 10);
  ASSERT_TRUE(outlier.has_value());
  EXPECT_EQ(*outlier, (Outlier{1, 15.0})) << "the middle does not follow one large one";
  EXPECT_TRUE(guard.look_at({1.0, 30.0}, 0, 10)) << "what was refused is not remembered";
  EXPECT_EQ(guard.look_at({1.0, 19.0}, 0, 10), std::nullopt);
}

TEST(NormGuard, WhatIsNotFiniteIsRefusedFromTheFirst) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    NormGuard guard;
    const auto outlier = guard.look_at({1.0, bad, 1.0}, 0, 10);
    ASSERT_TRUE(outlier.has_value());
    EXPECT_EQ(*outlier, (Outlier{1, 0}));
  }
}

TEST(NormGuard, WhoHasNoPartIsNeitherComparedNorAccused) {
  NormGuard guard;
  EXPECT_EQ(guard.look_at({1.0, std::nullopt, 1.0, 50.0}, 0, 10), std::nullopt) << "three are too few";
  EXPECT_EQ(guard.look_at({1.0, std::nullopt, 1.0, 50.0, 1.0}, 0, 10)->replica, 3u);
}

// Steps of different batches differ, by far less than the bound.
TEST(NormGuard, HonestReplicasPass) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    NormGuard guard;
    const size_t replicas = 2 + rng.below(7);
    double level = 1;
    for (int round = 0; round < 60; ++round) {
      level *= 0.9 + 0.15 * rng.uniform();
      Norms norms;
      for (size_t r = 0; r < replicas; ++r) norms.emplace_back(level * std::exp(2 * rng.uniform() - 1));
      EXPECT_EQ(guard.look_at(norms, 0, 10), std::nullopt);
    }
  }
}

}  // namespace
}  // namespace weft::replicas
