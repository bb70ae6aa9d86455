// A run that goes on is planned anew where that pays, and loses nothing by it.
#include "broker/run/drift.h"

#include <gtest/gtest.h>

#include "tests/broker/cluster.h"

namespace weft::broker {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Instant at(int64_t second) { return Instant(seconds(second)); }

TEST(Drift, LooksWhenThereIsNewsAndEnoughWasMeasured) {
  Drift drift({.look_after = seconds(30), .steps_min = 8});
  drift.planned({.links = 1});
  drift.begin(at(100), 5);
  EXPECT_FALSE(drift.is_time(at(129), 50)) << "too early";
  EXPECT_FALSE(drift.is_time(at(140), 12)) << "too few steps";
  EXPECT_TRUE(drift.is_time(at(140), 15));
  EXPECT_DOUBLE_EQ(drift.step_seconds(), 4);
  EXPECT_FALSE(drift.take_news({.links = 1}));
  EXPECT_FALSE(drift.is_time(at(169), 90)) << "since the last look";
  EXPECT_TRUE(drift.is_time(at(170), 75));
  EXPECT_DOUBLE_EQ(drift.step_seconds(), 0.5);
  EXPECT_TRUE(drift.take_news({.links = 1, .devices = 1}));
  EXPECT_FALSE(drift.take_news({.links = 1, .devices = 1})) << "that was looked at";
  EXPECT_FALSE(Drift({.look_after = {}}).is_time(at(1'000'000), 1'000'000)) << "never";
}

TEST(Drift, MovesOnlyForMuchAndWhereTheStepsLeftWinTheCost) {
  Drift drift({.look_after = seconds(30), .gain_min = 1.25, .pay_min = 3});
  drift.begin(at(0), 0);
  ASSERT_TRUE(drift.is_time(at(100), 50));  // 2 s a step
  const auto pays = [&](int is, int planned, uint64_t left, double cost) {
    return drift.pays(milliseconds(is), milliseconds(planned), left, cost);
  };
  EXPECT_TRUE(pays(1000, 500, 30, 10)) << "30 s to win, three times 10";
  EXPECT_FALSE(pays(1000, 500, 29, 10));
  EXPECT_FALSE(pays(1000, 850, 1'000'000, 10)) << "that may be chance";
  EXPECT_FALSE(pays(1000, 1000, 1'000'000, 0));
  EXPECT_FALSE(pays(1000, 0, 1'000'000, 0)) << "no prediction";
}

TEST(Drift, AMoveMakesTheNextLookLaterAndOneThatBroughtNothingMuch) {
  Drift drift({.look_after = seconds(10)});
  drift.begin(at(0), 0);
  ASSERT_TRUE(drift.is_time(at(10), 10));
  EXPECT_FALSE(drift.take_disappointment());
  drift.moves();
  drift.begin(at(20), 10);
  EXPECT_FALSE(drift.is_time(at(39), 90));
  ASSERT_TRUE(drift.is_time(at(40), 50));  // half a second
  EXPECT_FALSE(drift.take_disappointment()) << "it paid";
  ASSERT_TRUE(drift.is_time(at(50), 70)) << "as before the move";
  drift.moves();
  drift.begin(at(60), 70);
  ASSERT_TRUE(drift.is_time(at(80), 110));  // the same
  EXPECT_EQ(drift.take_disappointment(), 0.5);
  EXPECT_FALSE(drift.take_disappointment()) << "said once";
  EXPECT_FALSE(drift.is_time(at(80 + 159), 5000));
  EXPECT_TRUE(drift.is_time(at(80 + 160), 5000));
}

// ---- the whole broker

TEST(Drift, MoreReplicasAreTakenSoonerAndForLess) {
  Drift drift({.look_after = seconds(30), .steps_min = 8, .grow_after = seconds(5)});
  drift.planned({.pool = 1});
  drift.begin(at(100), 0);
  EXPECT_FALSE(drift.is_time(at(104), 50, /*may_grow=*/true));
  EXPECT_FALSE(drift.is_time(at(106), 50, /*may_grow=*/false));
  EXPECT_FALSE(drift.is_time(at(106), 7, /*may_grow=*/true)) << "too few steps";
  EXPECT_TRUE(drift.has_news({.pool = 2}));
  EXPECT_TRUE(drift.is_time(at(106), 30, /*may_grow=*/true));
  const auto pays = [&](int64_t planned, uint64_t left, bool grows) {
    return drift.pays(milliseconds(100), milliseconds(planned), left, 1.0, grows);
  };
  EXPECT_FALSE(pays(90, 1000, false));
  EXPECT_TRUE(pays(90, 1000, true)) << "ten replicas where there were nine";
  EXPECT_FALSE(pays(99, 1000, true)) << "within what a prediction is wrong by";
  EXPECT_FALSE(pays(90, 100, true)) << "what is left of the run wins less than it costs";
  Drift never({.look_after = {}, .grow_after = seconds(5)});
  EXPECT_FALSE(never.is_time(at(1000), 1000, /*may_grow=*/true));
}

test::ClusterOptions long_job() {
  return {.steps = 400, .checkpoint_steps = 100, .drift = {.look_after = seconds(2)}};
}
// The other plan is that of the two candidates with the highest numbers.
Result<Reconsidered::Other> half_as_long(const Reconsider& look) {
  const auto& candidates = look.request.candidates;
  return Reconsidered::Other{.as_it_is = milliseconds(1000),
                             .as_planned = milliseconds(100),
                             .peers = {candidates[candidates.size() - 2].peer, candidates.back().peer}};
}
bool moved(test::Cluster& cluster) {
  for (const std::string& notice : cluster.notices())
    if (notice.find("planned anew") != std::string::npos && notice.find("moving") != std::string::npos)
      return true;
  return false;
}
void play_until_step(test::Cluster& cluster, uint64_t step) {
  for (int i = 0; i < 200'000 && cluster.step() < step && cluster.state() < proto::JobState::Finished; ++i)
    cluster.turn();
}

TEST(Replan, ARunMovesToWhoCameAndLosesNoStep) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::ClusterOptions options = long_job();
    int looks = 0;
    options.reconsider = [&](const Reconsider& look) {
      ++looks;
      EXPECT_EQ(look.placed.size(), 2u);
      for (size_t s = 0; s < look.placed.size(); ++s)
        EXPECT_EQ(look.request.candidates.at(look.placed[s]).peer, look.current->stages[s].peer);
      return half_as_long(look);
    };
    test::Cluster cluster(options, seed);
    cluster.join(1), cluster.join(2);
    cluster.submit();
    play_until_step(cluster, 20);
    EXPECT_EQ(looks, 0) << "nothing has changed";
    cluster.join(3), cluster.join(4);
    ASSERT_TRUE(cluster.play());
    EXPECT_EQ(cluster.state(), proto::JobState::Finished);
    EXPECT_GT(looks, 0);
    EXPECT_TRUE(moved(cluster));
    cluster.check_log();
    for (const std::string& notice : cluster.notices())
      EXPECT_TRUE(notice.find("done again") == std::string::npos ||
                  notice.find(", 0 committed steps") != std::string::npos)
          << notice;
  }
}

TEST(Replan, NobodyMovesWithoutGainOrWhenItCannotBePlanned) {
  for (const bool fails : {false, true}) {
    test::ClusterOptions options = long_job();
    options.reconsider = [&](const Reconsider& look) -> Result<Reconsidered::Other> {
      if (fails) return weft::fail(ErrorCode::Infeasible, "no");
      auto other = half_as_long(look);
      other->as_planned = milliseconds(900);
      return other;
    };
    test::Cluster cluster(options, 3);
    cluster.join(1), cluster.join(2);
    cluster.submit();
    play_until_step(cluster, 20);
    cluster.join(3), cluster.join(4);
    ASSERT_TRUE(cluster.play());
    EXPECT_FALSE(moved(cluster));
  }
}

TEST(Replan, APlaceThatIsGoneAndABrokerThatDiesOnTheWayLoseNothing) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::ClusterOptions options = long_job();
    test::Cluster* world = nullptr;
    options.reconsider = [&](const Reconsider& look) {
      if (world != nullptr && seed % 4 == 0)
        world->crash_at_append(static_cast<int>(1 + seed % 7), seed % 8 == 0);
      return half_as_long(look);
    };
    test::Cluster cluster(options, seed);
    world = &cluster;
    cluster.join(1), cluster.join(2);
    cluster.submit();
    play_until_step(cluster, 20);
    cluster.join(3), cluster.join(4), cluster.join(5);
    for (int i = 0; i < 100'000 && !moved(cluster) && cluster.state() < proto::JobState::Finished; ++i)
      cluster.turn();
    if (seed % 2 == 1 && cluster.state() < proto::JobState::Finished)
      cluster.lose(static_cast<uint8_t>(1 + seed % 5));
    ASSERT_TRUE(cluster.play());
    EXPECT_EQ(cluster.state(), proto::JobState::Finished);
    cluster.check_log();
  }
}

}  // namespace
}  // namespace weft::broker
