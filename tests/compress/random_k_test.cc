// RandomK: one of each stretch, everyone in turn, without bias.
#include "tests/compress/cases.h"

namespace weft::compress {
namespace {

TEST(RandomK, SendsOneOfEachStretch) {
  for (const size_t count : {1, 10, 11, 999, 1000, 100'007}) {
    const Codec codec = codec_of("randomk:0.3:fp32");
    const size_t k = kept(codec, count);
    const auto y = round_trip(codec, std::vector<float>(count, 1.0f), {.seed = 3});
    for (size_t i = 0; i < k; ++i) {
      const size_t start = i * count / k, end = (i + 1) * count / k;
      double sum = 0;
      for (size_t j = start; j < end; ++j) sum += y[j];
      ASSERT_EQ(sum, static_cast<double>(end - start)) << i << " of " << count;
    }
  }
}

TEST(RandomK, AllOfThemIsTheTensor) {
  const auto x = tensor(Data::HeavyTail, 1000, 1);
  EXPECT_EQ(round_trip(codec_of("randomk:1:fp32"), x), x);
}

TEST(RandomK, IsUnbiasedWithTheVarianceStated) {
  const uint64_t seed = seed_of_run();
  SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
  constexpr int kTimes = 20'000;
  const auto x = tensor(Data::Normal, 103, seed);
  std::vector<double> sum(x.size());
  double squares = 0, expected = 0, chi = 0;
  for (int time = 0; time < kTimes; ++time) {
    const auto y =
        round_trip(codec_of("randomk:0.1:fp32"), x, {.seed = seed, .step = static_cast<uint64_t>(time)});
    for (size_t i = 0; i < x.size(); ++i) {
      sum[i] += double{y[i]} - x[i];
      squares += std::pow(double{y[i]} - x[i], 2) / kTimes;
    }
  }
  for (size_t i = 0, k = 10; i < x.size(); ++i) {
    size_t stretch = 0;
    while ((stretch + 1) * x.size() / k <= i) ++stretch;
    const auto m = static_cast<double>((stretch + 1) * x.size() / k - stretch * x.size() / k);
    const double variance = (m - 1) * std::pow(double{x[i]}, 2);
    expected += variance;
    EXPECT_LT(std::abs(sum[i]), 5 * std::sqrt(variance * kTimes)) << i;
    chi += sum[i] * sum[i] / (variance * kTimes);
  }
  EXPECT_LT(chi, 103 + 6 * std::sqrt(2 * 103.0));
  EXPECT_NEAR(squares, expected, 0.05 * expected);
}

TEST(RandomK, TheOtherEndNeedsTheSameDraw) {
  const auto x = tensor(Data::Normal, 1000, 1);
  const Codec codec = codec_of("randomk:0.1:fp32");
  const Bytes payload = encoded(codec, x, {.seed = 1});
  EXPECT_NE(decoded(codec, payload, 1000, {.seed = 1}), decoded(codec, payload, 1000, {.seed = 2}));
}

}  // namespace
}  // namespace weft::compress
