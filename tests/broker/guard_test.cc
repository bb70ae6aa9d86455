// Compressed links that hurt what is learned become gentler, once, and nothing is lost by it.
#include "broker/run/guard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/broker/cluster.h"

namespace weft::broker {
namespace {

TEST(Guard, JudgesMeansOfSeveralComparisons) {
  Guard guard;
  const proto::LinkComparison good{.step = 1, .loss_dense = 2, .loss = 2.001, .gradient_error = 0.2},
      bad{.step = 2, .loss_dense = 2, .loss = 2.2, .gradient_error = 0.2},
      wrong_way{.step = 3, .loss_dense = 2, .loss = 2, .gradient_error = 1.4};
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(guard.judge(good));
  EXPECT_TRUE(guard.judge(bad)) << "a quarter of a tenth";
  guard.begin();
  EXPECT_FALSE(guard.judge(wrong_way)) << "one alone";
  EXPECT_TRUE(guard.judge(wrong_way));
  guard.begin();
  proto::LinkComparison nan = good;
  nan.loss = std::nan("");
  EXPECT_TRUE(guard.judge(nan));
  nan.loss_dense = nan.loss;
  EXPECT_FALSE(guard.judge(nan)) << "the model itself diverges";
}

size_t count(test::Cluster& cluster, const std::string& text) {
  size_t found = 0;
  for (const std::string& notice : cluster.notices())
    if (notice.find(text) != std::string::npos) ++found;
  return found;
}

TEST(Guard, LinksThatHurtBecomeGentlerWhateverHappensMeanwhile) {
  for (uint64_t seed = 1; seed <= 16; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Cluster cluster({.steps = 1500, .checkpoint_steps = 100, .compresses = true}, seed);
    cluster.join(1), cluster.join(2), cluster.join(3);
    cluster.submit();
    int turns = 0;
    while (cluster.step() < 1500 && ++turns < 400'000 && count(cluster, "planned anew with gentler") == 0) {
      cluster.turn();
      if (seed % 4 == 1 && turns == 500) cluster.lose(static_cast<uint8_t>(1 + seed % 3));
      if (seed % 4 == 2 && turns % 700 == 0 && turns < 2200) cluster.crash_broker();
    }
    ASSERT_EQ(count(cluster, "planned anew with gentler"), 1u);
    if (seed % 4 == 3) cluster.crash_broker();
    if (seed % 8 == 0) cluster.lose(cluster.peer_of_stage(0));
    ASSERT_TRUE(cluster.play(2'000'000)) << "at step " << cluster.step() << ", " << turns << " turns before";
    EXPECT_EQ(cluster.state(), proto::JobState::Finished);
    // Gentle is gentle enough; a broker that dies before there is a plan finds it out again.
    EXPECT_LE(count(cluster, "planned anew with gentler"), seed % 4 == 3 ? 2u : 1u);
    cluster.check_log();
  }
}

// Each move takes noise away, until there is none: then it is not the codecs.
TEST(Guard, AStageThatAlwaysSaysTooMuchDoesNotMoveARunForEver) {
  test::Cluster cluster({.steps = 3000, .checkpoint_steps = 100, .compresses = true, .lies = true}, 1);
  cluster.join(1), cluster.join(2);
  cluster.submit();
  ASSERT_TRUE(cluster.play(2'000'000));
  EXPECT_EQ(cluster.state(), proto::JobState::Finished);
  EXPECT_GE(count(cluster, "planned anew with gentler"), 1u);
  EXPECT_LE(count(cluster, "planned anew with gentler"), 3u);
  EXPECT_EQ(count(cluster, "nothing that could be left out"), 1u);
}

}  // namespace
}  // namespace weft::broker
