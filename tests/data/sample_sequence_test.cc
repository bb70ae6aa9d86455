#include "data/sample_sequence.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace weft::data {
namespace {

TEST(SampleSequence, FileOrderWithoutShuffleGoesRound) {
  SampleSequence sequence(5, false, 0);
  EXPECT_EQ(sequence.indices(1, 3), (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(sequence.indices(2, 3), (std::vector<uint32_t>{3, 4, 0}));
  EXPECT_EQ(sequence.indices(1, 12), (std::vector<uint32_t>{0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1}));
}

TEST(SampleSequence, StepsAreTheEpochPermutationsEndToEnd) {
  std::vector<uint32_t> expected;
  for (uint64_t epoch = 0; epoch < 6; ++epoch) {
    const auto order = epoch_permutation(42, epoch, 7);
    expected.insert(expected.end(), order.begin(), order.end());
  }
  for (const uint32_t batch : {1u, 2u, 3u, 7u, 10u, 21u}) {
    SCOPED_TRACE(batch);
    SampleSequence sequence(7, true, 42);
    std::vector<uint32_t> got;
    for (uint64_t step = 1; step * batch <= expected.size(); ++step) {
      const auto indices = sequence.indices(step, batch);
      got.insert(got.end(), indices.begin(), indices.end());
    }
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin()));
  }
}

TEST(SampleSequence, AnyStepCanBeAskedForFirst) {
  SampleSequence forward(100, true, 7);
  std::vector<uint32_t> last;
  for (uint64_t step = 1; step <= 50; ++step) last = forward.indices(step, 16);
  SampleSequence resumed(100, true, 7);
  EXPECT_EQ(resumed.indices(50, 16), last);
  EXPECT_EQ(resumed.indices(3, 16), forward.indices(3, 16));
}

TEST(SampleSequence, EveryEpochHoldsEverySampleOnce) {
  SampleSequence sequence(1000, true, 3);
  for (uint64_t step = 1; step <= 3; ++step) {
    auto epoch = sequence.indices(step, 1000);
    EXPECT_FALSE(std::is_sorted(epoch.begin(), epoch.end()));
    std::sort(epoch.begin(), epoch.end());
    for (uint32_t i = 0; i < 1000; ++i) ASSERT_EQ(epoch[i], i);
  }
}

TEST(SampleSequence, EpochsAreRoundedDownToWholeSteps) {
  EXPECT_EQ(steps_of_epochs(1, 60000, 64), 937u);
  EXPECT_EQ(steps_of_epochs(2, 60000, 64), 1875u);
  EXPECT_EQ(steps_of_epochs(1, 3, 4), 0u);
  EXPECT_FALSE(steps_of_epochs(uint64_t{1} << 40, uint64_t{1} << 40, 1).has_value());
}

}  // namespace
}  // namespace weft::data
