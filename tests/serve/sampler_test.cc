#include "serve/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "base/rng.h"

namespace weft::serve {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> random_logits(size_t count, double spread, Rng& rng) {
  std::vector<float> logits;
  for (size_t i = 0; i < count; ++i) logits.push_back(static_cast<float>(spread * rng.normal()));
  return logits;
}

// The rule as it is written, without any short cut.
int64_t naive(const std::vector<float>& logits, const SamplingOptions& options, int64_t position) {
  int64_t best = -1;
  double best_score = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const PhiloxBlock block =
        philox({static_cast<uint32_t>(i / 2), static_cast<uint32_t>(position), 0, 0x746f6b65u},
               {static_cast<uint32_t>(options.seed), static_cast<uint32_t>(options.seed >> 32)});
    const size_t half = i % 2 * 2;
    const uint64_t bits = (uint64_t{block[half]} << 32 | block[half + 1]) >> 11;
    const double u = (static_cast<double>(bits) + 0.5) * 0x1p-53;
    const double score =
        static_cast<double>(logits[i]) / options.temperature - portable_log(-portable_log(u));
    if (best < 0 || score > best_score) best = static_cast<int64_t>(i), best_score = score;
  }
  return best;
}

TEST(PortableMath, AgreesWithTheLibrary) {
  Rng rng(7, 0);
  for (int i = 0; i < 20000; ++i) {
    const double x = std::exp(40 * (rng.uniform() - 0.5));
    EXPECT_NEAR(portable_log(x), std::log(x), 2e-15 * std::max(1.0, std::abs(std::log(x))));
    const double y = 1400 * (rng.uniform() - 0.5);
    EXPECT_NEAR(portable_exp(y) / std::exp(y), 1.0, 1e-13) << y;
  }
  EXPECT_EQ(portable_log(1.0), 0.0);
  EXPECT_EQ(portable_exp(0.0), 1.0);
  EXPECT_EQ(portable_exp(-1e9), 0.0);
}

TEST(DrawToken, IsTheGumbelRuleWhateverIsSkipped) {
  Rng rng(11, 0);
  for (int round = 0; round < 200; ++round) {
    const auto logits = random_logits(1 + rng.below(700), round % 3 == 0 ? 0.1 : 8.0, rng);
    const SamplingOptions options{.temperature = 0.1 + 2 * rng.uniform(), .seed = rng.next_u64()};
    const auto position = static_cast<int64_t>(rng.below(5000));
    const auto draw = draw_token(logits, options, position);
    ASSERT_TRUE(draw);
    EXPECT_EQ(draw->token, naive(logits, options, position)) << "round " << round;
  }
}

TEST(DrawToken, FollowsTheDistribution) {
  const std::vector<float> logits{1.0f, 0.0f, -1.0f, 2.0f};
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit / 0.8);
  std::map<int64_t, int> counts;
  constexpr int kDraws = 40000;
  for (int i = 0; i < kDraws; ++i) ++counts[draw_token(logits, {.temperature = 0.8, .seed = 3}, i)->token];
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = std::exp(logits[i] / 0.8) / sum;
    EXPECT_NEAR(counts[static_cast<int64_t>(i)], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p)));
  }
}

TEST(DrawToken, WithoutTemperatureTakesTheFirstOfTheLikeliest) {
  EXPECT_EQ(draw_token(std::vector<float>{1, 5, 5, 2}, {.temperature = 0}, 0)->token, 1);
  EXPECT_EQ(draw_token(std::vector<float>{-kInfinity, -2}, {.temperature = 0}, 0)->token, 1);
}

TEST(DrawToken, LeavesOutWhatTopKAndTopPSay) {
  const std::vector<float> logits{0, 3, 1, 3, 2};  // by likelihood: 1, 3, 4, 2, 0
  for (int64_t position = 0; position < 300; ++position) {
    EXPECT_EQ(draw_token(logits, {.temperature = 2, .top_k = 1}, position)->token, 1);
    const int64_t of_two = draw_token(logits, {.temperature = 9, .top_k = 2}, position)->token;
    EXPECT_TRUE(of_two == 1 || of_two == 3) << of_two;
    // e^3 twice, e^2, e, 1: the first two are 0.78 of all.
    const int64_t likely = draw_token(logits, {.temperature = 1, .top_p = 0.75}, position)->token;
    EXPECT_TRUE(likely == 1 || likely == 3) << likely;
    EXPECT_EQ(draw_token(logits, {.temperature = 1, .top_p = 1e-9}, position)->token, 1);
  }
}

TEST(DrawToken, TellsProbabilitiesOfTheModelItself) {
  const std::vector<float> logits{0, 1, 2};
  const double sum = 1 + std::exp(1) + std::exp(2);
  const auto draw = draw_token(logits, {.temperature = 0, .alternatives = 2}, 0);
  ASSERT_TRUE(draw);
  EXPECT_NEAR(draw->log_probability, 2 - std::log(sum), 1e-12);
  ASSERT_EQ(draw->alternatives.size(), 2u);
  EXPECT_EQ(draw->alternatives[1].first, 1);
  EXPECT_NEAR(draw->alternatives[1].second, 1 - std::log(sum), 1e-12);
  EXPECT_TRUE(draw_token(logits, {.temperature = 0}, 0)->alternatives.empty());
}

TEST(DrawToken, RefusesWhatIsNoNumber) {
  for (const auto& logits : {std::vector<float>{0, NAN}, std::vector<float>{-kInfinity, -kInfinity},
                             std::vector<float>{0, kInfinity}}) {
    const auto draw = draw_token(logits, {}, 4);
    ASSERT_FALSE(draw);
    EXPECT_EQ(draw.error().code, ErrorCode::Corrupted);
  }
}

}  // namespace
}  // namespace weft::serve
