// How much of each connection is in work at once, told what comes and what is done with.
#include "broker/service/intake.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "tests/gate/fake_connections.h"

namespace weft::broker {
namespace {

using Change = std::optional<bool>;  // of whether nothing is read from it
using test_desks::kKiB;
using test_desks::kMiB;
using test_desks::kThen;

TEST(Intake, WhoHasMuchWithTheCoreWaitsUntilHalfOfItIsTaken) {
  Intake intake({});
  intake.begin(1);
  intake.give_to_core(1, 256 * kKiB);
  EXPECT_EQ(intake.pace(1, 0), Change{});
  intake.give_to_core(1, 1);
  EXPECT_EQ(intake.pace(1, 0), Change{true});
  EXPECT_EQ(intake.pace(1, 0), Change{}) << "said once";
  intake.taken(1, 100 * kKiB);
  EXPECT_EQ(intake.pace(1, 0), Change{});
  EXPECT_TRUE(intake.is_held_up(1)) << "it is there, though it is not heard";
  intake.taken(1, 29 * kKiB);
  EXPECT_EQ(intake.pace(1, 0), Change{false});
  intake.taken(1, UINT64_MAX);
  EXPECT_FALSE(intake.is_with_core(1));
}

TEST(Intake, AUserHasOneThingWithTheCore) {
  Intake intake({});
  intake.begin(1);
  intake.is_of_user(1);
  EXPECT_EQ(intake.pace(1, 0), Change{});
  intake.give_to_core(1, 1);
  EXPECT_EQ(intake.pace(1, 0), Change{true});
  intake.taken(1, 1);
  EXPECT_EQ(intake.pace(1, 0), Change{false});
}

TEST(Intake, WhoDoesNotReadIsNotReadFromAndNotHeldUp) {
  Intake intake({});
  intake.begin(1);
  EXPECT_EQ(intake.pace(1, 1 * kMiB), Change{});
  EXPECT_EQ(intake.pace(1, 1 * kMiB + 1), Change{true});
  EXPECT_EQ(intake.paused(), std::vector<ConnectionId>{1});
  EXPECT_FALSE(intake.is_held_up(1)) << "it is its own doing";
  EXPECT_EQ(intake.pace(1, 512 * kKiB), Change{false});
}

// Each keeps to what one may do, and all of them together be too much: who has some of it waits, others not.
TEST(Intake, AllOfThemTogetherHaveABound) {
  Intake intake({});
  for (ConnectionId peer = 1; peer <= 4; ++peer) {
    intake.begin(peer);
    intake.begin_work(peer, 9 * kMiB);
  }
  intake.begin(5);
  EXPECT_EQ(intake.pace(1, 0), Change{true});
  EXPECT_EQ(intake.pace(5, 0), Change{}) << "it has none of it";
  intake.end(4);
  EXPECT_EQ(intake.pace(1, 0), Change{}) << "the disk goes on with what a connection left";
  for (ConnectionId peer = 2; peer <= 4; ++peer) intake.end_work(peer, 9 * kMiB);
  EXPECT_EQ(intake.pace(1, 0), Change{}) << "more than half of what one may have";
  intake.end_work(1, 1 * kMiB);
  EXPECT_EQ(intake.pace(1, 0), Change{false});

  for (ConnectionId reader = 10; reader < 30; ++reader) {
    intake.begin(reader);
    (void)intake.pace(reader, 900 * kKiB);
  }
  EXPECT_EQ(intake.pace(10, 900 * kKiB), Change{true}) << "of what is not read, too";
}

TEST(Intake, LargeFramesTakeTurnsBesideWhatIsInWork) {
  Intake intake({.max = 1 * kMiB});
  for (const ConnectionId peer : {1, 2, 3}) intake.begin(peer);
  EXPECT_FALSE(intake.begin_frame(1, 64 * kKiB, false)) << "not large";
  EXPECT_FALSE(intake.end_frame(1));
  intake.give_to_core(1, 200 * kKiB);
  EXPECT_TRUE(intake.begin_frame(1, 900 * kKiB, false));
  EXPECT_TRUE(intake.let_in(kThen).empty()) << "no room beside what the core has";
  EXPECT_EQ(intake.pace(1, 0), Change{true});
  intake.taken(1, 200 * kKiB);
  EXPECT_EQ(intake.let_in(kThen), std::vector<ConnectionId>{1});
  EXPECT_EQ(intake.pace(1, 0), Change{false});
  EXPECT_TRUE(intake.begin_frame(2, 900 * kKiB, false));
  EXPECT_TRUE(intake.begin_frame(3, 900 * kKiB, true));
  EXPECT_TRUE(intake.let_in(kThen).empty());
  EXPECT_TRUE(intake.end_frame(1));
  EXPECT_EQ(intake.let_in(kThen), std::vector<ConnectionId>{3}) << "who is urgent goes first";
  intake.end(3);
  EXPECT_EQ(intake.let_in(kThen), std::vector<ConnectionId>{2}) << "its room is free when it goes";
}

TEST(Intake, OfOneThatHasGoneNothingCounts) {
  Intake intake({.max = 1 * kMiB});
  intake.begin(1);
  intake.give_to_core(1, 20 * kMiB);
  (void)intake.pace(1, 20 * kMiB);
  intake.end(1);
  intake.end(1);
  intake.give_to_core(1, 20 * kMiB);
  intake.taken(1, 1);
  EXPECT_EQ(intake.pace(1, 20 * kMiB), Change{});
  EXPECT_FALSE(intake.begin_frame(1, 1 * kMiB, true));
  intake.begin(2);
  EXPECT_TRUE(intake.begin_frame(2, 1 * kMiB, false));
  EXPECT_EQ(intake.let_in(kThen), std::vector<ConnectionId>{2}) << "all of the room";
}

// Whatever comes and goes: when all is done with, everybody is read from and all of the room is there.
TEST(Intake, ForgetsNothingAndNobody) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 0);
    Intake intake({.max = 1 * kMiB});
    struct Here {
      size_t core = 0, work = 0, unread = 0;
      bool is_paused = false, has_frame = false;
    };
    std::map<ConnectionId, Here> here;
    std::vector<std::pair<ConnectionId, size_t>> work;
    const auto pace = [&](ConnectionId which) {
      const Change change = intake.pace(which, here.at(which).unread);
      if (change) here.at(which).is_paused = *change;
      const auto paused = intake.paused();
      EXPECT_EQ(std::count(paused.begin(), paused.end(), which), here.at(which).is_paused ? 1 : 0);
    };
    for (ConnectionId which = 1; which <= 12; ++which) {
      here[which] = {};
      intake.begin(which);
    }
    for (int turn = 0; turn < 2000; ++turn) {
      const ConnectionId which = 1 + rng.below(12);
      Here& of = here.at(which);
      const size_t size = rng.below(1 + rng.below(6 * kMiB));
      switch (rng.below(7)) {
        case 0:
          intake.give_to_core(which, size);
          of.core += size;
          break;
        case 1:
          intake.taken(which, std::min(of.core, size));
          of.core -= std::min(of.core, size);
          break;
        case 2:
          intake.begin_work(which, size);
          work.emplace_back(which, size);
          break;
        case 3:
          if (work.empty()) break;
          intake.end_work(work.back().first, work.back().second);
          work.pop_back();
          break;
        case 4:
          of.unread = rng.below(3 * kMiB);
          break;
        case 5:
          if (!of.has_frame) of.has_frame = intake.begin_frame(which, size, rng.below(2) == 0);
          break;
        default:
          EXPECT_EQ(intake.end_frame(which), of.has_frame);
          of.has_frame = false;
      }
      for (const ConnectionId in : intake.let_in(kThen)) pace(in);
      pace(which);
    }
    for (const auto& [which, size] : work) intake.end_work(which, size);
    for (auto& [which, of] : here) {
      intake.taken(which, of.core);
      of.unread = 0;
      (void)intake.end_frame(which);
      pace(which);
    }
    for (const auto& [which, of] : here) {
      pace(which);
      EXPECT_FALSE(of.is_paused) << which;
      EXPECT_FALSE(intake.is_with_core(which));
    }
    EXPECT_TRUE(intake.begin_frame(1, 1 * kMiB, false));
    EXPECT_EQ(intake.let_in(kThen).size(), 1u);
  }
}

}  // namespace
}  // namespace weft::broker
