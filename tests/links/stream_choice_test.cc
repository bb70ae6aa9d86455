// One connection or all of them, against ways that are made up: what a way carries over each, with noise.
#include "peer/service/stream_choice.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::peer::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

struct Way {
  double first = 0, all = 0;  // bytes a second
  double noise = 0;           // of each part, as a share
  double busy = 1;            // share of the time
};

class StreamChoiceTest : public ::testing::Test {
 protected:
  // Parts of 50 ms; the share of busy time that all connections were used in.
  double run(const Way& way, Duration time) {
    size_t parts = 0, of_all = 0;
    for (const Instant end = now_ + time; now_ < end; now_ += milliseconds(50)) {
      if (rng_.uniform() >= way.busy) continue;
      ++parts;
      of_all += choice_.uses_all();
      const double rate =
          (choice_.uses_all() ? way.all : way.first) * (1 + way.noise * (2 * rng_.uniform() - 1));
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
  const Way way{.first = 11.9e6, .all = 11.4e6, .noise = 0.3};
  run(way, seconds(5));
  EXPECT_FALSE(choice_.uses_all());
  EXPECT_LT(run(way, std::chrono::hours(1)), 0.02) << "the other way is tried now and then";
}

TEST_F(StreamChoiceTest, KeepsAllWhereOneDoesNotFillTheWay) {
  const Way way{.first = 1.35e6, .all = 6.75e6, .noise = 0.3};
  run(way, seconds(5));
  EXPECT_TRUE(choice_.uses_all());
  EXPECT_GT(run(way, std::chrono::hours(1)), 0.99);
}

TEST_F(StreamChoiceTest, SeesThatAWayHasChanged) {
  const Way clean{.first = 10e6, .all = 10e6, .noise = 0.05}, lossy{.first = 2e6, .all = 8e6, .noise = 0.2};
  run(clean, std::chrono::minutes(30));
  EXPECT_FALSE(choice_.uses_all());
  run(lossy, seconds(10));
  EXPECT_TRUE(choice_.uses_all()) << "what is carried fell to a fifth";
  run(clean, std::chrono::minutes(5));
  EXPECT_FALSE(choice_.uses_all());
}

TEST_F(StreamChoiceTest, ALineThatFallsByItselfCostsOneTry) {
  Way way{.first = 16e6, .all = 16e6};
  run(way, std::chrono::minutes(10));
  for (way.first = way.all = 4e6; way.first > 1e5; way.first = way.all = way.first / 4) {
    run(way, seconds(8));
    EXPECT_LT(run(way, seconds(50)), 0.05);
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
