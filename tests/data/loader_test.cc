#include "data/loader.h"

#include <gtest/gtest.h>

#include <atomic>

#include "tests/data/reading.h"

namespace weft::data {
namespace {

// Sample i is {i, i + 0.5} and its label 10 i; fails at one sample if asked to.
class Counting final : public Dataset {
 public:
  explicit Counting(uint32_t count, std::optional<uint32_t> broken = std::nullopt)
      : count_(count), broken_(broken) {}
  std::span<const Column> columns() const override { return columns_; }
  uint32_t sample_count() const override { return count_; }
  Status read(size_t column, std::span<const uint32_t> samples, std::span<std::byte> out) const override {
    ++reads;
    for (size_t i = 0; i < samples.size(); ++i) {
      if (samples[i] == broken_) return fail(ErrorCode::Corrupted, "sample is broken");
      if (column == 0) {
        reinterpret_cast<float*>(out.data())[2 * i] = static_cast<float>(samples[i]);
        reinterpret_cast<float*>(out.data())[2 * i + 1] = static_cast<float>(samples[i]) + 0.5f;
      } else {
        reinterpret_cast<int64_t*>(out.data())[i] = int64_t{10} * samples[i];
      }
    }
    return {};
  }
  mutable std::atomic<int> reads = 0;

 private:
  uint32_t count_;
  std::optional<uint32_t> broken_;
  std::vector<Column> columns_ = {{"x", {dag::DType::F32, {2}}}, {"y", {dag::DType::I64, {}}}};
};

const std::vector<Feed> kFeeds = {{"input", 0}, {"target", 1}};

TEST(Loader, AFeedIsConvertedAndShapedAsTheGraphTakesIt) {
  const Counting dataset(10);
  const std::vector<Feed> feeds = {{"image", 0, dag::TensorSpec{dag::DType::F64, {1, 2}}},
                                   {"label", 1, dag::TensorSpec{dag::DType::U8, {1}}}};
  const auto microbatch = read_microbatch(dataset, feeds, {1, 0, 3, {4, 5}});
  ASSERT_TRUE(microbatch.has_value()) << microbatch.error().message;
  const dag::Tensor& image = microbatch->tensors.at("image");
  EXPECT_EQ(image.spec(), (dag::TensorSpec{dag::DType::F64, {3, 1, 2}}));
  EXPECT_EQ(dag::to_doubles(image), (std::vector<double>{4, 4.5, 5, 5.5, 0, 0}));
  EXPECT_EQ(dag::to_int64s(microbatch->tensors.at("label")), (std::vector<int64_t>{40, 50, 0}));
}

TEST(Loader, ANumberThatTheGraphsTypeCannotHoldIsNamed) {
  const Counting dataset(100);
  const std::vector<Feed> feeds = {{"label", 1, dag::TensorSpec{dag::DType::U8, {}}}};
  EXPECT_TRUE(read_microbatch(dataset, feeds, {1, 0, 2, {3, 25}}).has_value());
  EXPECT_TRUE(fails_with(read_microbatch(dataset, feeds, {1, 0, 2, {3, 26}}), ErrorCode::OutOfRange,
                         "column 'y' holds 260"));
}

TEST(Loader, MicrobatchesComeInOrderThenTheEnd) {
  const auto dataset = std::make_shared<Counting>(10);
  Loader loader(dataset, kFeeds, training_requests(SampleSequence(10, false, 0), 1, 3, 4, 2));
  for (uint32_t k = 0; k < 6; ++k) {
    const auto microbatch = loader.next();
    ASSERT_TRUE(microbatch && *microbatch);
    EXPECT_EQ((*microbatch)->step, 1 + k / 2);
    EXPECT_EQ((*microbatch)->sample_position, k % 2 * 2);
    EXPECT_EQ((*microbatch)->valid_count, 2u);
    const auto& x = (*microbatch)->tensors.at("input");
    EXPECT_EQ(x.shape(), (dag::Shape{2, 2}));
    EXPECT_EQ(x.as<float>()[0], static_cast<float>(2 * k % 10));
    EXPECT_EQ((*microbatch)->tensors.at("target").as<int64_t>()[1], (2 * k + 1) % 10 * 10);
  }
  for (int again = 0; again < 2; ++again) {
    const auto end = loader.next();
    ASSERT_TRUE(end.has_value());
    EXPECT_FALSE(end->has_value());
  }
}

TEST(Loader, WhatIsReadyComesInTheSameOrderWithoutWaiting) {
  const auto dataset = std::make_shared<Counting>(10, 7);
  Loader loader(dataset, kFeeds, training_requests(SampleSequence(10, false, 0), 1, 5, 2, 2),
                {.queue_length_max = 1});
  uint64_t seen = 0, ready = 0;
  for (bool ahead = false; seen < 3; ahead = !ahead) {  // the fourth holds the sample that cannot be read
    std::optional<Microbatch> microbatch;
    if (ahead) {
      microbatch = loader.next_if_ready();
      ready += microbatch.has_value();
    } else {
      auto next = loader.next();
      ASSERT_TRUE(next.has_value());
      microbatch = std::move(*next);
      ASSERT_TRUE(microbatch.has_value());
    }
    if (microbatch) {
      EXPECT_EQ(microbatch->step, ++seen);
    }
  }
  EXPECT_LE(ready, 1u);
  // An error is no microbatch: next() tells it.
  EXPECT_TRUE(fails_with(loader.next(), ErrorCode::Corrupted, "broken"));
  EXPECT_FALSE(loader.next_if_ready().has_value());
}

TEST(Loader, ShuffledBatchIsTheSameHoweverItIsCut) {
  const auto dataset = std::make_shared<Counting>(50);
  std::vector<std::vector<int64_t>> seen;
  for (const uint32_t microbatch_size : {12u, 6u, 1u}) {
    Loader loader(dataset, kFeeds, training_requests(SampleSequence(50, true, 9), 4, 9, 12, microbatch_size));
    auto& labels = seen.emplace_back();
    for (auto next = loader.next(); next && *next; next = loader.next()) {
      const auto part = dag::to_int64s((*next)->tensors.at("target"));
      labels.insert(labels.end(), part.begin(), part.end());
    }
    EXPECT_EQ(labels.size(), 72u);
    EXPECT_EQ(labels, seen.front());
  }
}

TEST(Loader, EvaluationCoversEverySampleOnceAndPadsTheLast) {
  const auto dataset = std::make_shared<Counting>(5);
  Loader loader(dataset, kFeeds, evaluation_requests(5, 3));
  const auto first = loader.next();
  const auto second = loader.next();
  ASSERT_TRUE(first && *first && second && *second);
  EXPECT_EQ(dag::to_int64s((*first)->tensors.at("target")), (std::vector<int64_t>{0, 10, 20}));
  EXPECT_EQ((*second)->sample_position, 3u);
  EXPECT_EQ((*second)->valid_count, 2u);
  EXPECT_EQ(dag::to_int64s((*second)->tensors.at("target")), (std::vector<int64_t>{30, 40, 0}));
  EXPECT_FALSE((*loader.next()).has_value());
}

TEST(Loader, ReadErrorComesInItsTurnAndStays) {
  const auto dataset = std::make_shared<Counting>(10, 5);
  Loader loader(dataset, kFeeds, training_requests(SampleSequence(10, false, 0), 1, 5, 2, 2));
  EXPECT_TRUE(loader.next().has_value());
  EXPECT_TRUE(loader.next().has_value());
  for (int again = 0; again < 2; ++again)
    EXPECT_TRUE(fails_with(loader.next(), ErrorCode::Corrupted, "broken"));
}

TEST(Loader, ExceptionInTheReaderBecomesAnError) {
  const auto dataset = std::make_shared<Counting>(10);
  Loader loader(dataset, kFeeds, []() -> std::optional<Request> { throw std::bad_alloc(); });
  EXPECT_TRUE(fails_with(loader.next(), ErrorCode::ResourceExhausted, "memory"));
}

TEST(Loader, ReadsNoFurtherAheadThanItsQueue) {
  const auto dataset = std::make_shared<Counting>(10);
  {
    Loader loader(dataset, kFeeds, training_requests(SampleSequence(10, false, 0), 1, 1000000, 2, 2),
                  {.queue_length_max = 2});
    EXPECT_TRUE(loader.next().has_value());
  }
  // One was taken, two wait, one may be at the queue's door; two columns each.
  EXPECT_LE(dataset->reads.load(), 8);
}

TEST(Loader, CanBeDroppedUnread) {
  for (int i = 0; i < 100; ++i)
    Loader(std::make_shared<Counting>(10), kFeeds,
           training_requests(SampleSequence(10, true, 0), 1, 1000, 2, 2));
}

}  // namespace
}  // namespace weft::data
