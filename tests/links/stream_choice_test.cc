// One connection or all of them, against ways that are made up: what a path carries over each, with noise.
#include "peer/service/stream_choice.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::peer::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct PathModel {
  double first = 0, all = 0;  // bytes a second
  double noise = 0;           // of each part, as a share
  double busy = 1;            // share of the time
};

class StreamChoiceTest : public ::testing::Test {
 protected:
  // Parts of 50 ms; the share of busy time that all connections were used in.
  double run(const PathModel& path, Duration time) {
    size_t parts = 0, of_all = 0;
    for (const Instant end = now_ + time; now_ < end; now_ += milliseconds(50)) {
      if (rng_.uniform() >= path.busy) continue;
      ++parts;
      of_all += choice_.uses_all();
      const double rate =
          (choice_.uses_all() ? path.all : path.first) * (1 + path.noise * (2 * rng_.uniform() - 1));
      choice_.add(now_, milliseconds(50), static_cast<uint64_t>(rate / 20));
    }
    return static_cast<double>(of_all) / static_cast<double>(parts);
  }

  StreamChoice choice_;
  Rng rng_{7, 0};
  Instant now_ = Instant{} + seconds(1000);
};

TEST_F(StreamChoiceTest, BeginsWithAllAndTakesTheFirstAloneWhereThatCarriesAsMuch) {
  EXPECT_TRUE(choice_.uses_all());
  const PathModel path{.first = 11.9e6, .all = 11.4e6, .noise = 0.3};
  run(path, seconds(5));
  EXPECT_FALSE(choice_.uses_all());
  EXPECT_LT(run(path, std::chrono::hours(1)), 0.02) << "the other path is tried now and then";
}

TEST_F(StreamChoiceTest, KeepsAllWhereOneDoesNotFillTheWay) {
  const PathModel path{.first = 1.35e6, .all = 6.75e6, .noise = 0.3};
  run(path, seconds(5));
  EXPECT_TRUE(choice_.uses_all());
  EXPECT_GT(run(path, std::chrono::hours(1)), 0.99);
}

TEST_F(StreamChoiceTest, SeesThatAWayHasChanged) {
  const PathModel clean{.first = 10e6, .all = 10e6, .noise = 0.05},
      lossy{.first = 2e6, .all = 8e6, .noise = 0.2};
  run(clean, std::chrono::minutes(30));
  EXPECT_FALSE(choice_.uses_all());
  run(lossy, seconds(10));
  EXPECT_TRUE(choice_.uses_all()) << "what is carried fell to a fifth";
  run(clean, std::chrono::minutes(5));
  EXPECT_FALSE(choice_.uses_all());
}

TEST_F(StreamChoiceTest, ALineThatFallsByItselfCostsOneTry) {
  PathModel path{.first = 16e6, .all = 16e6};
  run(path, std::chrono::minutes(10));
  for (path.first = path.all = 4e6; path.first > 1e5; path.first = path.all = path.first / 4) {
    run(path, seconds(8));
    EXPECT_LT(run(path, seconds(50)), 0.05);
  }
}

TEST_F(StreamChoiceTest, WithoutBusyTimeThereIsNothingToChoose) {
  for (int i = 0; i < 1000; ++i) choice_.add(now_ += seconds(10), Duration{}, 1000);
  EXPECT_TRUE(choice_.uses_all());
  run({.first = 1e6, .all = 1e6, .busy = 0.02}, std::chrono::minutes(30));
  EXPECT_FALSE(choice_.uses_all()) << "its moments add up";
}

}  // namespace
}  // namespace weft::peer::test
