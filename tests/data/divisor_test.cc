// What a step's loss is divided by, counted from data in memory.
#include "data/divisor.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "data/loader.h"
#include "tests/data/reading.h"

namespace weft::data {
namespace {

constexpr int64_t kIgnored = -100;

// Columns: y i64[2], labels; w f32, a weight a sample; v f64[2], one an element.
class Labelled final : public Dataset {
 public:
  explicit Labelled(std::vector<int64_t> labels, std::vector<float> weights = {})
      : labels_(std::move(labels)), weights_(std::move(weights)) {
    weights_.resize(labels_.size() / 2, 1.0f);
  }
  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return static_cast<uint32_t>(labels_.size() / 2); }
  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    for (size_t i = 0; i < samples.size(); ++i)
      for (size_t e = 0; e < 2; ++e) {
        if (column == 0) reinterpret_cast<int64_t*>(out.data())[2 * i + e] = labels_[2 * samples[i] + e];
        if (column == 1) reinterpret_cast<float*>(out.data())[i] = weights_[samples[i]];
        if (column == 2)
          reinterpret_cast<double*>(out.data())[2 * i + e] =
              weights_[samples[i]] * static_cast<double>(e + 1);
      }
    return {};
  }

 private:
  std::vector<int64_t> labels_;
  std::vector<float> weights_;
  std::vector<Column> columns_ = {
      {"y", {dag::DType::I64, {2}}}, {"w", {dag::DType::F32, {}}}, {"v", {dag::DType::F64, {2}}}};
};

const Divisor kCounted{
    .input = "loss.divisor", .labels = 0, .weights = {}, .rule = {.ignore_index = kIgnored}};

template <typename T>
T get(Result<T> result) {
  EXPECT_TRUE(result.has_value()) << (result ? "" : result.error().message);
  return std::move(result).value();
}

double count_one(const Dataset& dataset, const Divisor& divisor, std::vector<uint32_t> samples) {
  return get(count(dataset, {&divisor, 1}, samples)).at(0);
}

TEST(Divisors, CountLabelsByClassSampleAndElement) {
  const Labelled data({0, 1, kIgnored, 2, kIgnored, kIgnored}, {0.5f, 3, 1});
  const std::vector<uint32_t> all{0, 1, 2, 0};
  EXPECT_EQ(count_one(data, kCounted, all), 2 + 1 + 0 + 2);
  Divisor divisor = kCounted;
  divisor.rule.class_weights = {1, 0.25, 10};
  EXPECT_EQ(count_one(data, divisor, all), 1.25 + 10 + 1.25);
  divisor.weights = 1;
  EXPECT_EQ(count_one(data, divisor, all), 0.5 * 1.25 + 3 * 10 + 0.5 * 1.25);
  divisor.weights = 2;
  EXPECT_EQ(count_one(data, divisor, {1}), 3 * 2 * 10) << "of the second element";
  divisor.rule.reads = {4, 0};
  EXPECT_EQ(count_one(data, divisor, {0}), 4 * 0.5) << "the second is not read";
  const Divisor elements{.input = "d", .labels = {}, .weights = 1, .rule = {.elements = 6}};
  EXPECT_EQ(count_one(data, elements, {0, 1}), 6 * 3.5);
}

TEST(Divisors, WhatCannotBeIsNamedByColumnAndRow) {
  Divisor weighted = kCounted;
  weighted.weights = 1;
  for (const float bad : {-1.0f, NAN, INFINITY}) {
    const Labelled data({0, 1, 0, 1, 0, 1}, {1, 1, bad});
    const auto counted = count(data, {&weighted, 1}, std::vector<uint32_t>{0, 2});
    ASSERT_FALSE(counted.has_value());
    EXPECT_NE(counted.error().message.find("column 'w', row 2"), std::string::npos)
        << counted.error().message;
  }
  Divisor classes = kCounted;
  classes.rule.class_weights = {1, 1};
  const auto counted = count(Labelled({0, 1, 2, 0}), {&classes, 1}, std::vector<uint32_t>{0, 1});
  ASSERT_FALSE(counted.has_value());
  EXPECT_EQ(counted.error().code, ErrorCode::OutOfRange);
  EXPECT_NE(counted.error().message.find("column 'y', row 1: label 2"), std::string::npos);
}

// The loader gives the same divisor to all microbatches of a step, from the samples of all of them.
TEST(Divisors, ComeWithEachMicrobatchOfTheirStep) {
  const auto data = std::make_shared<Labelled>(
      std::vector<int64_t>{0, 0, kIgnored, 0, kIgnored, kIgnored, kIgnored, kIgnored, 1, 1, 1, 1});
  Loader loader(data, {{"target", 0}}, training_requests(SampleSequence(6, false, 0), 1, 3, 2, 1),
                {.divisors = {kCounted}, .loss_terms = 1});
  const double expected[] = {3, 3, 1, 1, 4, 4};  // in the second step nothing counts: 1, and it is empty
  for (int m = 0; m < 6; ++m) {
    const auto microbatch = loader.next();
    ASSERT_TRUE(microbatch && *microbatch);
    EXPECT_EQ(to_doubles((*microbatch)->tensors.at("loss.divisor")), std::vector<double>{expected[m]});
    EXPECT_EQ((*microbatch)->is_of_empty_step, (*microbatch)->step == 2);
  }
  // With a term that always counts no step is empty.
  StepDivisors two_terms({kCounted}, 2);
  EXPECT_FALSE(get(two_terms.of(*data, 2, std::vector<uint32_t>{2, 3}))->is_empty);
}

// As a walk through the run finds them, over random data; with and without shuffling.
TEST(EmptySteps, AreThoseOfWhichNoSampleCounts) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    const auto samples = static_cast<uint32_t>(1 + rng.below(30));
    std::vector<int64_t> labels;
    for (uint32_t i = 0; i < samples; ++i) {
      const bool counts = rng.below(3) == 0;
      labels.insert(labels.end(), {kIgnored, counts ? 1 : kIgnored});
    }
    const Labelled data(labels);
    const SampleSequence sequence(samples, rng.below(2) == 0, seed);
    const auto batch = static_cast<uint32_t>(1 + rng.below(5));
    std::vector<uint64_t> expected;
    SampleSequence walk = sequence;
    for (uint64_t step = 1; step <= 50; ++step)
      if (count_one(data, kCounted, walk.indices(step, batch)) == 0) expected.push_back(step);
    EXPECT_EQ(get(find_empty_steps(data, {&kCounted, 1}, 1, sequence, batch, 50)), expected);
    EXPECT_TRUE(get(find_empty_steps(data, {&kCounted, 1}, 2, sequence, batch, 50)).empty());
  }
}

TEST(EmptySteps, TooManyOfThemAreRefusedWithTheirNumber) {
  const Labelled data({kIgnored, kIgnored, kIgnored, 1});
  const auto found =
      find_empty_steps(data, {&kCounted, 1}, 1, SampleSequence(2, false, 0), 1, 10 * kEmptyStepsMax);
  ASSERT_FALSE(found.has_value());
  EXPECT_NE(found.error().message.find("1 of 2 samples"), std::string::npos) << found.error().message;
}

}  // namespace
}  // namespace weft::data
