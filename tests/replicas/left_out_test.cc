// Rounds that end without a replica: what it made is made again, and every step of a run takes the samples of
// one of its steps, each once.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"
#include "replicas/left_out.h"
#include "replicas/local_steps.h"

namespace weft::replicas {
namespace {

using Ranges = std::vector<StepRange>;

LocalSteps dealt(uint32_t count, uint64_t every, uint64_t steps, uint64_t begun_after = 0,
                 Ranges given_again = {}) {
  return {.terms = {.count = count, .every = every},
          .steps = steps,
          .begun_after = begun_after,
          .given_again = std::move(given_again)};
}

TEST(LeftOut, AnotherTakesTheMeans) {
  const LeftOut left_out{.replicas = {1, 3}, .owner = 0};
  EXPECT_TRUE(left_out.has(3) && !left_out.has(2));
  EXPECT_TRUE(left_out.includes({.replicas = {3}}) && left_out.includes({}));
  EXPECT_FALSE(left_out.includes({.replicas = {2, 3}}));
  EXPECT_EQ(left_out.owner_of(1), 0u);
  EXPECT_EQ(left_out.owner_of(2), 2u);
  EXPECT_TRUE(is_valid(left_out) && is_valid(LeftOut{}));
  EXPECT_FALSE(is_valid(LeftOut{.replicas = {1, 3}, .owner = 3}));
  EXPECT_FALSE(is_valid(LeftOut{.replicas = {3, 1}, .owner = 0}));
  EXPECT_FALSE(is_valid(LeftOut{.replicas = {1}, .owner = kReplicasMax}));
}

TEST(LeftOut, ItsStepsOfTheRoundAreGivenAgain) {
  const LocalSteps run = dealt(3, 2, 30);
  const Shortened left = leave_out(round_of(run, 3), {1});
  EXPECT_EQ(left.round.steps, (std::vector<uint64_t>{2, 0, 2}));
  EXPECT_EQ(left.round.taken, (Ranges{{7, 2}, {11, 2}}));
  EXPECT_EQ(left.given_again, (Ranges{{9, 2}}));
  EXPECT_EQ(left.round.steps_after(), 10u);
  EXPECT_EQ(samples_of(left.round, 8), 8u);
  EXPECT_EQ(samples_of(left.round, 9), 11u);
  EXPECT_EQ(locate(left.round, 9).replica, 2u);
  EXPECT_EQ(locate(left.round, 10).scheduled, 6u + 3 + 1) << "as three that go side by side";

  const LocalSteps next = dealt(2, 2, 30, 10, {{9, 2}});
  ASSERT_TRUE(is_valid(next));
  EXPECT_EQ(own_step(next, 0, 11), (OwnStep{9, 11}));
  EXPECT_EQ(own_step(next, 0, 12), (OwnStep{10, 13}));
  EXPECT_EQ(own_step(next, 1, 11), (OwnStep{13, 11}));
  EXPECT_EQ(own_step(next, 0, 13), (OwnStep{15, 15})) << "from here on those of their own numbers";
  EXPECT_TRUE(round_of(next, 13).taken.empty());
  EXPECT_EQ(without(next, 12, {}).given_again, Ranges{});
  EXPECT_EQ(without(next, 12, {1}).given_again, Ranges{}) << "they are next anyway";
  EXPECT_EQ(without(next, 12, {0}).given_again, (Ranges{{9, 2}}));
}

// Rounds of 4 steps, of which each third one settles: who is left out of the second has no part in the first.
TEST(LeftOut, OfARoundThatTheOneBeforeOverlapsTheyHaveNoPartInThatOneEither) {
  LocalSteps run = dealt(2, 2, 40);
  run.terms.settle_every = 3;
  EXPECT_EQ(first_left_out(run, 2), 2u) << "none overlaps the first one";
  EXPECT_EQ(first_left_out(run, 4), 2u);
  EXPECT_EQ(first_left_out(run, 6), 4u);
  EXPECT_EQ(first_left_out(run, 8), 8u) << "all had the same weights after the third one";
  const Without first = without(run, 2, {1});
  ASSERT_EQ(first.rounds.size(), 1u);
  EXPECT_EQ(first.made(), 2u);
  const Without both = without(run, 4, {0});
  ASSERT_EQ(both.rounds.size(), 2u);
  EXPECT_TRUE(both.rounds[0].overlaps && !both.rounds[1].overlaps) << "the last one settles";
  EXPECT_EQ(both.rounds[0].steps, (std::vector<uint64_t>{0, 2}));
  EXPECT_EQ(both.rounds[0].taken, (Ranges{{3, 2}}));
  EXPECT_EQ(both.rounds[1].steps_before, 2u);
  EXPECT_EQ(both.rounds[1].dealt_after(), 4u);
  EXPECT_EQ(both.rounds[1].taken, (Ranges{{7, 2}}));
  EXPECT_EQ(both.made(), 4u);
  EXPECT_EQ(both.given_again, (Ranges{{1, 2}, {5, 2}}));
  EXPECT_EQ(locate(both.rounds[1], 3).scheduled, locate(round_of(run, 3), 7).scheduled) << "as it was dealt";
  EXPECT_EQ(samples_of(both.rounds[1], 3), 7u);

  LocalSteps next = dealt(1, 2, 40, 4, {{1, 2}, {5, 2}});
  next.terms.settle_every = 3;
  ASSERT_TRUE(is_valid(next));
  const auto rounds = rounds_of({{run, {}}, {next, {.sets = {1, 1}, .left_out = {0}}}}, 8);
  ASSERT_EQ(rounds.size(), 4u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(rounds[i].steps, both.rounds[i].steps);
    EXPECT_EQ(rounds[i].dealt_after(), both.rounds[i].dealt_after());
    EXPECT_TRUE(rounds[i].inherited.returns_are_lost);
  }
  EXPECT_EQ(rounds[2].taken, (Ranges{{1, 2}}));
  EXPECT_EQ(rounds[3].taken, (Ranges{{5, 2}}));
  EXPECT_TRUE(given_again_after(rounds).empty());
}

// Where a plan ends, and where what was made is asked for, all have the same weights.
TEST(LeftOut, TheLastRoundOfAPlanOverlapsNone) {
  LocalSteps run = dealt(2, 2, 40);
  run.terms.settle_every = 5;
  LocalSteps next = run;
  next.begun_after = 8;
  const std::vector<Begun> plans{{run, {}}, {next, {}}};
  const auto overlaps = [&](uint64_t made, bool settled) {
    std::vector<bool> all;
    for (const OuterRound& round : rounds_of(plans, made, settled)) all.push_back(round.overlaps);
    return all;
  };
  EXPECT_EQ(overlaps(16, true), (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(overlaps(16, false), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(overlaps(14, true), (std::vector<bool>{true, false, true, true})) << "it is not over";
}

TEST(LeftOut, WhatIsLeftOfThemWaitsForTheRoundAfter) {
  const LocalSteps run = dealt(1, 2, 20, 4, {{1, 2}, {4, 3}});
  ASSERT_TRUE(is_valid(run));
  EXPECT_EQ(round_of(run, 5).taken, (Ranges{{1, 2}}));
  EXPECT_EQ(without(run, 6, {}).given_again, (Ranges{{4, 3}}));
  EXPECT_EQ(round_of(run, 7).taken, (Ranges{{4, 2}}));
  EXPECT_EQ(round_of(run, 9).taken, (Ranges{{6, 1}, {10, 1}}));
  EXPECT_TRUE(round_of(run, 11).taken.empty());
}

TEST(LeftOut, WhatCannotBeGivenAgain) {
  EXPECT_TRUE(is_valid(dealt(2, 2, 30, 10, {{9, 2}})));
  EXPECT_TRUE(is_valid(dealt(2, 2, 30, 10, {{1, 4}, {9, 2}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{12, 2}}))) << "nobody had come to it";
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{9, 2}, {5, 2}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{9, 2}, {10, 2}}))) << "twice";
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{0, 2}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{9, 0}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 11, 10, {{9, 2}}))) << "more than the run has";
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{9, UINT64_MAX}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, {{UINT64_MAX, 2}})));
  EXPECT_FALSE(is_valid(dealt(2, 2, 30, 10, Ranges(kStepRangesMax + 1, {1, 1}))));
}

TEST(LeftOut, ARoundThatIsCutKeepsWhatItHasTaken) {
  const OuterRound round = round_of(dealt(2, 3, 30, 10, {{9, 2}}), 11);
  EXPECT_EQ(round.taken, (Ranges{{9, 2}, {13, 4}}));
  EXPECT_EQ(cut_after(round, 14).taken, (Ranges{{9, 2}, {13, 2}}));
}

// Runs that lose replicas in their rounds, and go on with others: by the plans and by the rounds that they
// say.
TEST(LeftOut, EachSampleCountsOnce) {
  const uint64_t seed = 20261127;
  Rng rng(seed, 1);
  for (int at = 0; at < 300; ++at) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", run " + std::to_string(at));
    const uint64_t steps = 1 + rng.below(200);
    std::vector<Begun> plans;
    std::vector<OuterRound> made;
    LocalSteps plan = dealt(1 + static_cast<uint32_t>(rng.below(5)), 1 + rng.below(7), steps);
    plan.terms.settle_every = 1 + rng.below(4);
    std::vector<uint32_t> taken(steps + 1);
    for (;;) {
      ASSERT_TRUE(is_valid(plan));
      if (plans.empty()) plans.push_back({plan, {}});
      // So many rounds, and in the last one somebody is lost.
      uint64_t inner = plan.begun_after;
      const uint64_t last = last_inner_step(plan);
      uint64_t rounds = 1 + rng.below(4);
      OuterRound round;
      std::optional<OuterRound> before;  // that overlaps it
      for (; inner < last && rounds > 0; --rounds) {
        inner = next_end(plan, inner + 1);
        if (!round.steps.empty()) made.push_back(round);
        before = round.overlaps ? std::optional(round) : std::nullopt;
        round = round_of(plan, inner);
      }
      round.overlaps = false;
      std::vector<uint32_t> lost;
      for (uint32_t r = 0; r < plan.terms.count && lost.size() + 1 < plan.terms.count; ++r)
        if (rng.below(3) == 0) lost.push_back(r);
      Shortened left = leave_out(round, lost), left_before;
      if (before) left_before = leave_out(*before, lost);
      const bool is_empty = left.round.steps_after() == round.steps_before ||
                            (before && left_before.round.steps_after() == before->steps_before);
      uint64_t gone = round.steps_after() - left.round.steps_after();
      if (before) gone += before->steps_after() - left_before.round.steps_after();
      if (is_empty || gone == 0) lost.clear();  // or they had none to make
      if (lost.empty()) {
        made.push_back(round);
        if (inner == last) break;
      } else {
        if (before) {
          made.back() = left_before.round;
          made.back().inherited.returns_are_lost = true;
          left.round.steps_before = made.back().steps_after();
          left.round.void_before = round.steps_before - left.round.steps_before;
        }
        made.push_back(left.round);
        made.back().inherited.returns_are_lost = true;
      }
      LocalSteps next = dealt(1 + static_cast<uint32_t>(rng.below(5)), 1 + rng.below(7), steps,
                              made.back().steps_after(), without(plan, inner, lost).given_again);
      next.terms.settle_every = 1 + rng.below(4);
      Inherited of_next{.sets = std::vector<uint32_t>(plan.terms.count, 0), .left_out = lost};
      if (lost.empty()) of_next = {};
      ASSERT_EQ(next.given_again, given_again_after(made));
      plans.push_back({next, of_next});
      plan = next;
    }
    for (const OuterRound& round : made)
      for (uint64_t step = round.steps_before + 1; step <= round.steps_after(); ++step)
        ++taken[samples_of(round, step)];
    for (uint64_t step = 1; step <= steps; ++step) ASSERT_EQ(taken[step], 1u) << step;
    std::vector<OuterRound> said = rounds_of(plans, steps);
    ASSERT_EQ(said.size(), made.size());
    for (size_t i = 0; i < said.size(); ++i) {
      said[i].inherited.sets.clear();
      said[i].inherited.left_out.clear();
      EXPECT_EQ(said[i], made[i]) << "round " << i;
    }
  }
}

}  // namespace
}  // namespace weft::replicas
