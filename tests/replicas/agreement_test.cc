// Error feedback loses nothing, the mean is that of a naive one, and the outer rule is torch.optim.SGD's.
#include "replicas/agreement.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"

namespace weft::replicas {
namespace {

std::vector<float> normal(size_t count, uint64_t seed) {
  Rng rng(seed, 7);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(rng.normal());
  return values;
}

compress::Codec codec(const char* name) { return compress::parse(name).value(); }

TEST(PassThrough, WhatIsReadAndWhatIsOwedAreWhatWasToBeSent) {
  PassScratch scratch;
  for (const char* name : {"topk:0.02:int4", "topk:0.1:fp32", "int4", "fp16", "randomk:0.1:fp32"}) {
    SCOPED_TRACE(name);
    std::vector<float> residue = normal(5000, 1);
    std::vector<float> values = normal(5000, 2);
    std::vector<float> wanted(values.size());
    for (size_t i = 0; i < wanted.size(); ++i) wanted[i] = residue[i] + values[i];
    const auto bytes = pass_through(codec(name), draw_of(3, 120, 5, 2), values, residue, scratch);
    ASSERT_TRUE(bytes.has_value());
    EXPECT_LE(*bytes, compress::wire_bytes(codec(name), values.size()));
    for (size_t i = 0; i < wanted.size(); ++i) {
      ASSERT_EQ(residue[i], wanted[i] - values[i]) << i;
      ASSERT_NEAR(static_cast<double>(residue[i]) + values[i], wanted[i], 1e-5 * (1 + std::abs(values[i])));
    }
  }
}

// Of a gradient that stays the same, all arrives in the end, though a fiftieth is sent at a time.
TEST(PassThrough, ErrorFeedbackDeliversAllOfIt) {
  PassScratch scratch;
  const std::vector<float> steady = normal(1000, 3);
  std::vector<float> residue(steady.size()), arrived(steady.size());
  constexpr int kRounds = 400;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<float> values = steady;
    ASSERT_TRUE(pass_through(codec("topk:0.02:fp32"), draw_of(0, round, 0, 0), values, residue, scratch));
    for (size_t i = 0; i < values.size(); ++i) arrived[i] += values[i];
  }
  double error = 0, norm = 0;
  for (size_t i = 0; i < steady.size(); ++i) {
    error += std::pow(arrived[i] / kRounds - steady[i], 2);
    norm += std::pow(steady[i], 2);
  }
  EXPECT_LT(std::sqrt(error / norm), 0.2);  // a codec without feedback stays at 0.9
}

TEST(PassThrough, DensePassesAllAndOwesNothing) {
  PassScratch scratch;
  std::vector<float> values = normal(100, 4);
  const std::vector<float> before = values;
  EXPECT_EQ(pass_through({}, {}, values, {}, scratch), 400u);
  EXPECT_EQ(values, before);
}

TEST(PassThrough, SaysWhatIsNotFinite) {
  PassScratch scratch;
  for (const char* name : {"dense", "topk:0.5:fp32", "int8"})
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
                            -std::numeric_limits<float>::infinity()}) {
      std::vector<float> values = normal(300, 5), residue(300);
      values[217] = bad;
      EXPECT_EQ(pass_through(codec(name), {}, values,
                             codec(name).kind == compress::Kind::Dense ? std::span<float>()
                                                                       : std::span<float>(residue),
                             scratch),
                std::nullopt)
          << name;
    }
}

TEST(Mean, IsThatOfANaiveOneWeightedBySamples) {
  Mean mean(64);
  for (int again = 0; again < 2; ++again) {
    std::vector<double> sum(64);
    uint64_t all = 0;
    for (uint64_t replica = 0; replica < 5; ++replica) {
      const std::vector<float> values = normal(64, 10 + replica);
      const uint64_t weight = 1 + 7 * replica;
      mean.add(values, weight);
      for (size_t i = 0; i < 64; ++i) sum[i] += static_cast<double>(weight) * values[i];
      all += weight;
    }
    std::vector<float> out(64);
    mean.take(out);
    for (size_t i = 0; i < 64; ++i)
      EXPECT_EQ(out[i], static_cast<float>(sum[i] / static_cast<double>(all))) << again << " " << i;
  }
}

TEST(Mean, OfOneIsItself) {
  Mean mean(100);
  const std::vector<float> values = normal(100, 6);
  mean.add(values, 48000);
  std::vector<float> out(100);
  mean.take(out);
  EXPECT_EQ(out, values);
}

// torch 1.13: p = torch.tensor([1.0, -2.0]); SGD([p], lr=0.7, momentum=0.9, nesterov=True), gradients [0.5,
// 0.25] and then [-0.125, 1.0].
TEST(OuterStep, IsThatOfTorch) {
  std::vector<float> weights{1.0f, -2.0f}, momentum(2);
  take_outer_step({}, std::vector<float>{-0.5f, -0.25f}, momentum, weights);
  EXPECT_FLOAT_EQ(weights[0], 0.335f);
  EXPECT_FLOAT_EQ(weights[1], -2.3325f);
  take_outer_step({}, std::vector<float>{0.125f, -1.0f}, momentum, weights);
  EXPECT_FLOAT_EQ(weights[0], 0.21775f);
  EXPECT_FLOAT_EQ(weights[1], -3.80425f);
}

TEST(OuterStep, TheAverageIsAdded) {
  std::vector<float> weights{1.0f, -2.0f};
  take_outer_step({.type = OuterType::Average}, std::vector<float>{-0.5f, 0.25f}, {}, weights);
  EXPECT_EQ(weights, (std::vector<float>{0.5f, -1.75f}));
}

// On average replicas go on from where the mean of what they learnt puts them.
TEST(LookAhead, IsTheOuterStepOnAverage) {
  for (const OuterType type : {OuterType::Average, OuterType::Nesterov}) {
    const OuterSpec outer{.type = type};
    const std::vector<float> a = normal(50, 1), b = normal(50, 2), agreed = normal(50, 3);
    std::vector<float> momentum = type == OuterType::Nesterov ? normal(50, 4) : std::vector<float>{};
    std::vector<float> of_a(50), of_b(50), mean(50), together = agreed;
    const std::vector<float> before = momentum;
    look_ahead(outer, a, momentum, agreed, of_a);
    look_ahead(outer, b, momentum, agreed, of_b);
    EXPECT_EQ(momentum, before) << "it is nobody's own";
    for (size_t i = 0; i < 50; ++i) mean[i] = (a[i] + b[i]) / 2;
    take_outer_step(outer, mean, momentum, together);
    for (size_t i = 0; i < 50; ++i) EXPECT_NEAR((of_a[i] + of_b[i]) / 2, together[i], 1e-5);
    std::vector<float> alone = agreed, passed = before;
    take_outer_step(outer, a, passed, alone);
    EXPECT_EQ(of_a, alone) << "of one replica it is that step";
  }
}

TEST(Draws, NoTwoEncodingsOfARoundHaveTheSame) {
  EXPECT_NE(draw_of(1, 0, 0, 0), draw_of(1, 0, 1, 0));
  EXPECT_NE(draw_of(1, 0, 0, 0), draw_of(1, 0, 0, 1));
  EXPECT_NE(draw_of(1, 0, 0, 0), draw_of(1, 0, 0, kOwner));
  EXPECT_NE(draw_of(1, 0, 0, 0), draw_of(1, 120, 0, 0));
}

}  // namespace
}  // namespace weft::replicas
