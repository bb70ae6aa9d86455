// Who makes which steps: every step of a run belongs to one replica, once, in the order of the run, whatever
// the numbers are and wherever a round is cut.
#include "replicas/outer_round.h"

#include <gtest/gtest.h>

#include "base/rng.h"

namespace weft::replicas {
namespace {

TEST(OuterRound, DealsContiguousBlocksByReplica) {
  const OuterRound round = next_round({.count = 3, .every = 2}, 6, 100);
  EXPECT_EQ(round, (OuterRound{.steps_before = 6, .steps = {2, 2, 2}, .side_by_side = 3}));
  EXPECT_EQ(locate(round, 7), (LocalStep{.replica = 0, .index = 0, .scheduled = 7, .ends_block = false}));
  EXPECT_EQ(locate(round, 8), (LocalStep{.replica = 0, .index = 1, .scheduled = 10, .ends_block = true}));
  EXPECT_EQ(locate(round, 9), (LocalStep{.replica = 1, .index = 0, .scheduled = 7, .ends_block = false}));
  EXPECT_EQ(locate(round, 12), (LocalStep{.replica = 2, .index = 1, .scheduled = 10, .ends_block = true}));
}

TEST(OuterRound, TheLastIsDealtAsEquallyAsItCanBe) {
  EXPECT_EQ(next_round({.count = 4, .every = 30}, 120, 170).steps, (std::vector<uint64_t>{13, 13, 12, 12}));
  EXPECT_EQ(next_round({.count = 4, .every = 30}, 120, 122).steps, (std::vector<uint64_t>{1, 1, 0, 0}));
}

TEST(OuterRound, TheLastIsDealtByShares) {
  const ReplicaTerms terms{.count = 3, .every = 6, .shares = {6, 2, 4}};
  EXPECT_EQ(next_round(terms, 12, 100).steps, (std::vector<uint64_t>{6, 2, 4}));
  EXPECT_EQ(next_round(terms, 12, 18).steps, (std::vector<uint64_t>{3, 1, 2}));
  EXPECT_EQ(next_round(terms, 12, 19).steps, (std::vector<uint64_t>{4, 1, 2}));
  EXPECT_EQ(next_round(terms, 12, 13),
            (OuterRound{.steps_before = 12, .steps = {1, 0, 0}, .side_by_side = 1, .dealt = {1, 0, 0}}));
}

TEST(OuterRound, OneReplicaReadsTheScheduleAsOneMachineDoes) {
  const OuterRound round = next_round({.count = 1, .every = 5}, 10, 100);
  for (uint64_t step = 11; step <= 15; ++step) EXPECT_EQ(locate(round, step).scheduled, step);
}

TEST(OuterRound, EveryStepOfARunBelongsToOneReplicaOnce) {
  Rng rng(20261127, 0);
  for (int run = 0; run < 500; ++run) {
    const ReplicaTerms terms{.count = static_cast<uint32_t>(1 + rng.below(9)), .every = 1 + rng.below(12)};
    const uint64_t steps = 1 + rng.below(400);
    SCOPED_TRACE("seed 20261127, run " + std::to_string(run));
    uint64_t before = 0;
    while (before < steps) {
      OuterRound round = next_round(terms, before, steps);
      ASSERT_EQ(round.steps_before, before);
      ASSERT_LE(round.steps_after(), steps);
      ASSERT_GT(round.steps_after(), before);
      if (rng.below(4) == 0) round = cut_after(round, before + 1 + rng.below(round.steps_after() - before));
      std::vector<uint64_t> made(terms.count);
      for (uint64_t step = before + 1; step <= round.steps_after(); ++step) {
        const LocalStep place = locate(round, step);
        ASSERT_EQ(place.index, made[place.replica]++);
        ASSERT_EQ(place.ends_block, made[place.replica] == round.steps[place.replica]);
        for (uint32_t later = place.replica + 1; later < terms.count; ++later) ASSERT_EQ(made[later], 0u);
        ASSERT_GE(place.scheduled, before + 1);
        ASSERT_LE(place.scheduled, steps);
      }
      ASSERT_EQ(made, round.steps);
      before = round.steps_after();
    }
    ASSERT_EQ(before, steps);
  }
}

// Rounds of 8 steps, of which each third one settles; the last does, and one that is cut.
TEST(OuterRound, OverlapsTheNextOneUnlessAllAreToHaveTheSameWeights) {
  const ReplicaTerms terms{.count = 2, .every = 4, .settle_every = 3};
  std::vector<bool> overlaps;
  for (uint64_t before = 0; before < 60; before += 8)
    overlaps.push_back(next_round(terms, before, 60).overlaps);
  EXPECT_EQ(overlaps, (std::vector<bool>{true, true, false, true, true, false, true, false}));
  EXPECT_FALSE(next_round(terms, 56, 64).overlaps) << "the last one, though it is whole";
  EXPECT_FALSE(next_round(terms, 20, 60).overlaps) << "24 steps are reached in it, wherever a run began";
  EXPECT_FALSE(next_round({.count = 2, .every = 4}, 0, 60).overlaps);
  EXPECT_FALSE(cut_after(next_round(terms, 0, 60), 7).overlaps);
  EXPECT_TRUE(cut_after(next_round(terms, 0, 60), 8).overlaps);
  EXPECT_TRUE(leave_out(next_round(terms, 0, 60), {1}).round.overlaps);
}

TEST(OuterRound, ACutOneKeepsWhatWasDone) {
  const OuterRound round{.steps_before = 10, .steps = {3, 4, 5}, .side_by_side = 3};
  EXPECT_EQ(cut_after(round, 15), (OuterRound{.steps_before = 10, .steps = {3, 2, 0}, .side_by_side = 3}));
  EXPECT_EQ(cut_after(round, 13), (OuterRound{.steps_before = 10, .steps = {3, 0, 0}, .side_by_side = 3}));
  EXPECT_EQ(cut_after(round, 22), round);
  for (uint64_t step = 11; step <= 15; ++step)
    EXPECT_EQ(locate(cut_after(round, 15), step).scheduled, locate(round, step).scheduled);
}

}  // namespace
}  // namespace weft::replicas
