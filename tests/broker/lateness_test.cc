// Replicas that hold the others of their round up: who is found late, and who is not. What an inner step
// takes on each machine is told; the run's clock is the test's.
#include <gtest/gtest.h>

#include "tests/broker/local_run.h"
#include "tests/broker/local_world.h"

namespace weft::broker::local {
namespace {

using std::chrono::milliseconds;

// A run whose replicas take so long for an inner step.
class Race {
 public:
  Race(const LocalShape& shape, std::vector<Duration> takes) : run(shape), takes_(std::move(takes)) {
    done_.resize(takes_.size(), run.now);
    run.hear(run.run->start(run.now));
  }
  void take(uint32_t replica, Duration each) { takes_[replica] = each; }
  // For so long, or until somebody is late.
  std::optional<LateReplica> go_on(Duration length) {
    const Instant until = run.now + length;
    while (run.now < until && !run.finished && !testing::Test::HasFailure()) {
      run.now += milliseconds(10);
      for (uint32_t seat = 0; seat < run.seats.size(); ++seat) {
        const uint32_t replica = run.seats[seat].stage().seat.replica;
        // Who was told of further steps begins them then, not when it ended the one before.
        if (run.lost.contains(replica) || run.now < done_[replica] + takes_[replica]) continue;
        while (auto message = run.seats[seat].work(test::least_computed(run.seats, run.lost))) {
          const bool is_step = std::get_if<proto::StepReport>(&*message) != nullptr;
          EXPECT_TRUE(run.say(seat, *message).has_value());
          if (is_step) done_[replica] = run.now;
          if (is_step) break;
        }
      }
      if ((run.now - Instant{}) % milliseconds(500) != Duration::zero()) continue;
      run.hear(run.run->on_tick(run.now));
      if (const auto late = run.run->late()) return late;
    }
    return std::nullopt;
  }
  uint64_t made() const { return run.run->inner().made(run.run->committed_step()); }

  LocalRun run;

 private:
  std::vector<Duration> takes_;
  std::vector<Instant> done_;  // its last step
};

LocalShape shape_of(uint32_t replicas, uint64_t every) {
  return {.replicas = replicas, .every = every, .steps = 100'000, .replicas_max = 8};
}
constexpr Duration kLong = std::chrono::minutes(10), kNever = std::chrono::hours(10);

TEST(Lateness, NobodyIsLateWhereAllTakeAboutAsLong) {
  Race race(shape_of(4, 30), {milliseconds(100), milliseconds(110), milliseconds(130), milliseconds(150)});
  EXPECT_FALSE(race.go_on(kLong).has_value());
  EXPECT_GT(race.made(), 10'000u);
  for (uint32_t replica = 0; replica < 4; ++replica) race.take(replica, milliseconds(400));
  race.take(2, milliseconds(480));
  EXPECT_FALSE(race.go_on(kLong).has_value()) << "all of them became slow";
}

// A third of a round ahead is all that may be granted: the others stand still long before the round's end.
TEST(Lateness, WhoStandsStillIsLateWhenOthersHaveWaitedForAnotherRound) {
  Race race(shape_of(3, 30), {milliseconds(100), milliseconds(100), milliseconds(100)});
  ASSERT_FALSE(race.go_on(std::chrono::seconds(61)).has_value());
  race.take(1, kNever);
  const Instant since = race.run.now;
  const auto late = race.go_on(kLong);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->replica, 1u);
  EXPECT_NEAR(seconds(late->usual), 3, 0.5);
  EXPECT_NEAR(seconds(late->waited), 8.5, 1);
  EXPECT_LT(seconds(race.run.now - since), 12);
  race.run.run->on_tick(race.run.now + milliseconds(500));
  ASSERT_TRUE(race.run.lose(1));
  EXPECT_FALSE(race.go_on(kLong).has_value());
  EXPECT_TRUE(race.run.stopped.has_value()) << "the others have agreed";
}

// Its pace in this round says that it is there at once; but it stands still.
TEST(Lateness, WhoStandsStillAtTheRoundsEndIsLate) {
  Race race(shape_of(3, 30), {milliseconds(100), milliseconds(100), milliseconds(100)});
  ASSERT_FALSE(race.go_on(std::chrono::seconds(61)).has_value());
  while (race.run.run->committed_step() % 30 != 27) ASSERT_FALSE(race.go_on(milliseconds(50)).has_value());
  race.take(1, kNever);
  const Instant since = race.run.now;
  const auto late = race.go_on(kLong);
  ASSERT_TRUE(late.has_value());
  EXPECT_EQ(late->replica, 1u);
  EXPECT_LT(seconds(race.run.now - since), 12);
}

TEST(Lateness, WhoBecomesSlowIsLateFromTwiceTheOthersTimeOn) {
  for (const auto& [times, is_late] : std::vector<std::pair<int, bool>>{{3, true}, {6, true}}) {
    Race race(shape_of(3, 100), {milliseconds(100), milliseconds(100), milliseconds(100)});
    ASSERT_FALSE(race.go_on(std::chrono::seconds(61)).has_value());
    race.take(2, times * milliseconds(100));
    const auto late = race.go_on(kLong);
    ASSERT_EQ(late.has_value(), is_late) << times;
    EXPECT_EQ(late->replica, 2u);
  }
  Race race(shape_of(3, 100), {milliseconds(100), milliseconds(100), milliseconds(100)});
  ASSERT_FALSE(race.go_on(std::chrono::seconds(61)).has_value());
  race.take(2, milliseconds(150));
  EXPECT_FALSE(race.go_on(kLong).has_value())
      << "a third of the time is lost: less than going without it costs";
}

// Where two of three stand still it is not they that are odd.
TEST(Lateness, MostOfThemAreNotLate) {
  Race race(shape_of(3, 30), {milliseconds(100), milliseconds(100), milliseconds(100)});
  ASSERT_FALSE(race.go_on(std::chrono::seconds(61)).has_value());
  race.take(1, kNever);
  race.take(2, kNever);
  EXPECT_FALSE(race.go_on(std::chrono::minutes(1)).has_value());
}

// Its clock goes on while it stands still, as that of a machine that slept: what peers said meanwhile is
// still to be read.
TEST(Lateness, ABrokerThatStoodStillBlamesNobody) {
  Race race(shape_of(3, 30), {milliseconds(100), milliseconds(100), milliseconds(120)});
  for (int i = 0; i < 10; ++i) {
    ASSERT_FALSE(race.go_on(std::chrono::seconds(7)).has_value());
    race.run.now += std::chrono::minutes(10);
    race.run.hear(race.run.run->on_tick(race.run.now));
    EXPECT_FALSE(race.run.run->late().has_value());
  }
}

TEST(Lateness, TheFirstStepsMayTakeLonger) {
  Race race(shape_of(2, 30), {milliseconds(100), milliseconds(100)});
  race.take(1, std::chrono::seconds(15));
  EXPECT_FALSE(race.go_on(std::chrono::seconds(16)).has_value());
  race.take(1, milliseconds(100));
  EXPECT_FALSE(race.go_on(kLong).has_value());
}

TEST(Lateness, WhoIsPardonedIsNotLateInThisRound) {
  Race race(shape_of(2, 30), {milliseconds(100), milliseconds(100)});
  ASSERT_FALSE(race.go_on(std::chrono::seconds(31)).has_value());
  race.take(1, kNever);
  ASSERT_TRUE(race.go_on(kLong).has_value());
  race.run.run->pardon_late();
  EXPECT_FALSE(race.go_on(std::chrono::minutes(1)).has_value());
  race.take(1, milliseconds(100));
  ASSERT_FALSE(race.go_on(std::chrono::minutes(1)).has_value());
  race.take(1, kNever);
  EXPECT_TRUE(race.go_on(kLong).has_value()) << "in another one it is";
}

}  // namespace
}  // namespace weft::broker::local

namespace weft::broker {
namespace {

// Somebody's machine stands still for a while, and is there: the others go on without it at once, and it is a
// replica again when it has rested.
TEST(LocalBroker, AReplicaThatIsLateRestsAndComesBack) {
  LocalWorld local({.replicas = 3, .every = 12, .steps = 3000, .replicas_max = 3});
  local.are_others = true;
  World& world = local.world;
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  world.submit(100, 2);
  local.plan();
  local.play([&] { return world.broker.status(1)->step >= 50; });
  local.silent = 3;
  const Instant since = world.now;
  const auto go_on = [&](const std::function<bool()>& until) {
    for (int i = 0; i < 400 && !until() && !testing::Test::HasFailure(); ++i) {
      local.wait_and_hear(3);
      for (int turns = 0; turns < 20 && !until() && local.turn(); ++turns) {
      }
    }
  };
  go_on([&] { return !world.plannings.empty(); });
  EXPECT_LT(seconds(world.now - since), 30) << local.notices();
  const std::string notices = local.notices();
  EXPECT_NE(notices.find("the others have waited"), std::string::npos) << notices;
  EXPECT_NE(notices.find("for peer3, and a round takes"), std::string::npos) << notices;
  EXPECT_NE(notices.find("the others end their round without replica 3"), std::string::npos) << notices;
  ASSERT_FALSE(world.plannings.empty());
  ASSERT_EQ(world.plannings.back().candidates.size(), 2u) << "it rests";
  const auto released = world.messages<proto::ReleaseStage>(3);
  ASSERT_FALSE(released.empty());
  EXPECT_NE(released.front().reason.find("its replica is left out: the others have waited"),
            std::string::npos)
      << released.front().reason;
  local.shape.replicas = 2;
  local.shape.begun_after = world.plannings.back().checkpoint->made();
  local.shape.given_again = world.plannings.back().checkpoint->local->given_again;
  local.plan();
  local.silent.reset();
  go_on([&] { return !world.reconsiders.empty(); });
  ASSERT_FALSE(world.reconsiders.empty()) << "it has rested, and is a peer as any other";
  EXPECT_EQ(world.reconsiders.back().request.candidates.size(), 3u);
  EXPECT_GT(seconds(world.now - since), 30);
}

// Where the job asks for all that are there, nobody is left out: it would stand still.
TEST(LocalBroker, AReplicaThatIsLateStaysWhereTheOthersAreTooFew) {
  LocalWorld local({.replicas = 3, .every = 12, .steps = 3000, .replicas_max = 3});
  World& world = local.world;
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  world.submit(100, 3);
  local.plan();
  local.play([&] { return world.broker.status(1)->step >= 50; });
  local.silent = 3;
  for (int i = 0; i < 80; ++i) {
    local.wait_and_hear(3);
    while (local.turn()) {
    }
  }
  EXPECT_EQ(local.notices().find("without replica"), std::string::npos) << local.notices();
  local.silent.reset();
  local.play([&] { return local.has_ended(); });
  EXPECT_EQ(world.states.at(1), JobState::Finished);
}

}  // namespace
}  // namespace weft::broker
