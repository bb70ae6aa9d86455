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
  EXPECT_EQ(given_again_without(next, 12, {}), Ranges{});
  EXPECT_EQ(given_again_without(next, 12, {1}), Ranges{}) << "they are next anyway";
  EXPECT_EQ(given_again_without(next, 12, {0}), (Ranges{{9, 2}}));
}

TEST(LeftOut, WhatIsLeftOfThemWaitsForTheRoundAfter) {
  const LocalSteps run = dealt(1, 2, 20, 4, {{1, 2}, {4, 3}});
  ASSERT_TRUE(is_valid(run));
  EXPECT_EQ(round_of(run, 5).taken, (Ranges{{1, 2}}));
  EXPECT_EQ(given_again_without(run, 6, {}), (Ranges{{4, 3}}));
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
    std::vector<uint32_t> taken(steps + 1);
    for (;;) {
      ASSERT_TRUE(is_valid(plan));
      if (plans.empty()) plans.push_back({plan, {}});
      // So many rounds, and in the last one somebody is lost.
      uint64_t inner = plan.begun_after;
      const uint64_t last = last_inner_step(plan);
      uint64_t rounds = 1 + rng.below(4);
      OuterRound round;
      for (; inner < last && rounds > 0; --rounds) {
        inner = next_agreement(plan, inner + 1);
        round = round_of(plan, inner);
        if (rounds > 1 && inner < last)
          made.push_back(round);
        else
          break;
      }
      std::vector<uint32_t> lost;
      for (uint32_t r = 0; r < plan.terms.count && lost.size() + 1 < plan.terms.count; ++r)
        if (rng.below(3) == 0) lost.push_back(r);
      const Shortened left = leave_out(round, lost);
      if (left.round.steps_after() == round.steps_before) lost.clear();
      if (lost.empty()) {
        made.push_back(round);
        if (inner == last) break;
      } else {
        made.push_back(left.round);
        made.back().inherited.returns_are_lost = true;
        if (left.round.steps_after() == steps) {  // they had none to make
          made.back() = round;
          break;
        }
      }
      LocalSteps next = dealt(1 + static_cast<uint32_t>(rng.below(5)), 1 + rng.below(7), steps,
                              made.back().steps_after(), given_again_without(plan, inner, lost));
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
