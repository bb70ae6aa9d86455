#include "replicas/local_steps.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/rng.h"

namespace weft::replicas {
namespace {

LocalSteps local(uint32_t count, uint64_t every, uint64_t steps, uint64_t begun_after = 0) {
  return {.terms = {.count = count, .every = every}, .steps = steps, .begun_after = begun_after};
}

TEST(LocalSteps, TwoReplicasEveryThreeSteps) {
  const LocalSteps run = local(2, 3, 9);
  EXPECT_EQ(last_inner_step(run), 5u);  // 1 2 3 | 4 5 6, then 7 8 | 9
  EXPECT_EQ(own_step(run, 0, 1), (OwnStep{1, 1}));
  EXPECT_EQ(own_step(run, 1, 1), (OwnStep{4, 1}));
  EXPECT_EQ(own_step(run, 1, 3), (OwnStep{6, 5}));
  EXPECT_EQ(own_step(run, 0, 5), (OwnStep{8, 9}));
  EXPECT_EQ(own_step(run, 1, 5), std::nullopt);
  EXPECT_EQ(steps_after(run, 2), 4u);
  EXPECT_EQ(steps_after(run, 3), 6u);
  EXPECT_EQ(steps_after(run, 5), 9u);
  EXPECT_EQ(next_agreement(run, 0), 0u);
  EXPECT_EQ(next_agreement(run, 1), 3u);
  EXPECT_EQ(next_agreement(run, 4), 5u);
  EXPECT_TRUE(agrees_after(run, 3) && agrees_after(run, 5) && !agrees_after(run, 4));
}

TEST(LocalSteps, AgreeAfterTheRoundsThatOverlapNone) {
  LocalSteps run = local(2, 3, 40, 6);  // rounds of 6 steps: to 12, 18, 24 (settles), 30, 36 (settles), 40
  run.terms.settle_every = 2;
  EXPECT_EQ(last_inner_step(run), 6u + 5 * 3 + 2);
  std::vector<uint64_t> ends, agreed;
  for (uint64_t inner = 6; inner <= last_inner_step(run); ++inner) {
    if (ends_round(run, inner)) ends.push_back(inner);
    if (agrees_after(run, inner)) agreed.push_back(inner);
    EXPECT_EQ(next_end(run, inner) == inner, ends_round(run, inner));
    EXPECT_EQ(next_agreement(run, inner) == inner, agrees_after(run, inner));
    if (inner == 6) continue;
    EXPECT_EQ(round_of(run, inner).overlaps, !agrees_after(run, next_end(run, inner))) << inner;
  }
  EXPECT_EQ(ends, (std::vector<uint64_t>{6, 9, 12, 15, 18, 21, 23}));
  EXPECT_EQ(agreed, (std::vector<uint64_t>{6, 9, 15, 21, 23}));
  EXPECT_EQ(next_agreement(run, 10), 15u);
  EXPECT_EQ(agreement_before(run, 15), 9u);
  EXPECT_EQ(agreement_before(run, 11), 9u);
  EXPECT_EQ(agreement_before(run, 7), 6u);
}

TEST(LocalSteps, GoesOnFromWhereARunWas) {
  const LocalSteps run = local(2, 3, 20, 11);
  EXPECT_EQ(own_step(run, 0, 12), (OwnStep{12, 12}));
  EXPECT_EQ(own_step(run, 1, 12), (OwnStep{15, 12}));
  EXPECT_EQ(steps_after(run, 11), 11u);
  EXPECT_EQ(last_inner_step(run), 16u);
}

// Two replicas, then three, which are planned once more from what the second plan had not made yet; then one.
TEST(LocalSteps, RoundsOfPlansThatFollowEachOther) {
  LocalSteps shares = local(3, 4, 60, 12);
  shares.terms.shares = {4, 2, 1};
  const std::vector<Begun> plans{{local(2, 3, 60)},
                                 {local(3, 3, 60, 18)},
                                 {shares, {.sets = {1, 1}, .debtless = {0}}},
                                 {local(1, 3, 60, 26)}};
  const auto rounds = rounds_of(plans, 30);
  std::vector<std::vector<uint64_t>> steps;
  for (const OuterRound& round : rounds) steps.push_back(round.steps);
  EXPECT_EQ(steps, (std::vector<std::vector<uint64_t>>{{3, 3}, {3, 3}, {4, 2, 1}, {4, 2, 1}, {3}, {3}}));
  EXPECT_EQ(rounds[2].steps_before, 12u);
  EXPECT_EQ(rounds[2].dealt, (std::vector<uint64_t>{4, 2, 1}));
  EXPECT_EQ(rounds[2].inherited.sets, (std::vector<uint32_t>{1, 1}))
      << "where the plan begins, and there alone";
  EXPECT_TRUE(rounds[3].inherited.is_whole() && rounds[4].inherited.is_whole());
  EXPECT_EQ(rounds[4].steps_before, 26u);
  EXPECT_TRUE(rounds_of({}, 30).empty());
  EXPECT_EQ(rounds_of({{local(2, 3, 9)}}, 100).back().steps_after(), 9u) << "as far as it reaches";
  EXPECT_EQ(rounds_of({{local(2, 3, 60)}, {local(2, 3, 60, 13)}}, 60).back().steps_after(), 18u)
      << "a plan that begins where no round ends is none of the run's";
}

TEST(LocalSteps, ASlowReplicaMakesItsShareEvenly) {
  LocalSteps run = local(2, 6, 20);
  run.terms.shares = {2, 6};  // 1 2 | 3 to 8, 9 10 | 11 to 16, then 17 | 18 19 20
  ASSERT_TRUE(is_valid(run));
  EXPECT_EQ(last_inner_step(run), 15u);
  EXPECT_EQ(own_step(run, 0, 1), (OwnStep{1, 1}));
  EXPECT_EQ(own_step(run, 0, 2), std::nullopt);
  EXPECT_EQ(own_step(run, 0, 4), (OwnStep{2, 5}));
  EXPECT_EQ(own_step(run, 1, 6), (OwnStep{8, 7}));
  EXPECT_EQ(own_step(run, 0, 7), (OwnStep{9, 9}));
  EXPECT_EQ(own_step(run, 0, 13), (OwnStep{17, 17}));
  EXPECT_EQ(own_step(run, 1, 15), (OwnStep{20, 19}));
  EXPECT_EQ(steps_after(run, 3), 4u);
  EXPECT_EQ(steps_after(run, 6), 8u);
  EXPECT_EQ(own_steps_after(run, 0, 9), 3u);
  EXPECT_EQ(own_steps_after(run, 1, 9), 9u);
}

// Who has yet to be given what the others have makes no step, and nothing is dealt to it.
TEST(LocalSteps, AFollowerMakesNone) {
  LocalSteps run = local(3, 2, 9);
  run.terms.followers = {1};  // 1 2 || 3 4, 5 6 || 7 8, 9
  ASSERT_TRUE(is_valid(run));
  EXPECT_EQ(run.terms.makers(), 2u);
  EXPECT_EQ(last_inner_step(run), 5u);
  EXPECT_EQ(round_of(run, 1).steps, (std::vector<uint64_t>{2, 0, 2}));
  EXPECT_EQ(round_of(run, 5).steps, (std::vector<uint64_t>{1, 0, 0}));
  EXPECT_EQ(round_of(run, 1).side_by_side, 2u);
  for (uint64_t inner = 1; inner <= 5; ++inner) EXPECT_EQ(own_step(run, 1, inner), std::nullopt);
  EXPECT_EQ(own_step(run, 2, 3), (OwnStep{7, 5}));
  EXPECT_EQ(own_steps_after(run, 1, 4), 0u);
  EXPECT_EQ(steps_after(run, 4), 8u);
  run.terms.shares = {1, 2, 1};  // the largest share is its
  ASSERT_TRUE(is_valid(run));
  EXPECT_EQ(round_of(run, 1).steps, (std::vector<uint64_t>{1, 0, 1}));
  EXPECT_EQ(own_step(run, 0, 1), (OwnStep{1, 1}));
  EXPECT_EQ(own_step(run, 0, 2), std::nullopt);
  EXPECT_EQ(own_step(run, 2, 3), (OwnStep{4, 3}));
  for (const std::vector<uint32_t>& wrong :
       {std::vector<uint32_t>{3}, std::vector<uint32_t>{1, 1}, std::vector<uint32_t>{0, 1, 2}}) {
    run.terms.followers = wrong;
    EXPECT_FALSE(is_valid(run));
  }
}

TEST(LocalSteps, SharesThatCannotBe) {
  const auto is_fine = [](std::vector<uint64_t> shares) {
    LocalSteps run = local(2, 6, 20);
    run.terms.shares = std::move(shares);
    return is_valid(run);
  };
  EXPECT_TRUE(is_fine({6, 1}));
  EXPECT_FALSE(is_fine({6}));
  EXPECT_FALSE(is_fine({6, 6, 6}));
  EXPECT_FALSE(is_fine({6, 0}));
  EXPECT_FALSE(is_fine({5, 5}));
  EXPECT_FALSE(is_fine({6, 7}));
  LocalSteps far = local(2, 17, 100);
  far.terms.shares = {17, 3};
  EXPECT_TRUE(is_valid(far));
  far.terms.shares = {17, 2};
  EXPECT_FALSE(is_valid(far)) << "more than eight times as many";
}

// What the rounds deal one after the other is what the inner steps deal side by side: each step of the run
// once, to the replica and at the place that its round says.
TEST(LocalSteps, AreTheStepsOfTheRounds) {
  const uint64_t seed = 20260917;
  Rng rng(seed, 1);
  for (int run = 0; run < 300; ++run) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", run " + std::to_string(run));
    const uint64_t begun = rng.below(50);
    LocalSteps steps =
        local(1 + static_cast<uint32_t>(rng.below(9)), 1 + rng.below(12), begun + 1 + rng.below(300), begun);
    if (run % 2 == 1) {
      for (uint32_t r = 0; r < steps.terms.count; ++r)
        steps.terms.shares.push_back(
            std::max<uint64_t>((steps.terms.every + 7) / 8, 1 + rng.below(steps.terms.every)));
      steps.terms.shares[rng.below(steps.terms.count)] = steps.terms.every;
    }
    ASSERT_TRUE(is_valid(steps));
    std::vector<uint32_t> made(steps.steps + 1);
    std::vector<uint64_t> own_steps(steps.terms.count);
    uint64_t inner = begun;
    for (uint64_t before = begun; before < steps.steps;) {
      const OuterRound round = next_round(steps.terms, before, steps.steps);
      const uint64_t most = *std::max_element(round.steps.begin(), round.steps.end());
      std::vector<uint64_t> in_round(steps.terms.count);
      for (uint64_t i = 1; i <= most; ++i) {
        EXPECT_EQ(round_of(steps, inner + i), round);
        EXPECT_EQ(agrees_after(steps, inner + i), i == most);
        EXPECT_EQ(next_agreement(steps, inner + i), inner + most);
        for (uint32_t replica = 0; replica < steps.terms.count; ++replica) {
          const auto own = own_step(steps, replica, inner + i);
          if (own) {
            const LocalStep place = locate(round, own->step);
            EXPECT_EQ(place.replica, replica);
            EXPECT_EQ(place.index, in_round[replica]);
            EXPECT_EQ(place.scheduled, own->scheduled);
            EXPECT_GT(own->scheduled, round.steps_before);
            if (run % 2 == 1) {
              EXPECT_LE(own->scheduled, round.steps_after());
            }
            ++made[own->step], ++in_round[replica], ++own_steps[replica];
          }
          EXPECT_EQ(own_steps_after(steps, replica, inner + i), own_steps[replica]);
          // Never a whole step away from going on evenly; never behind.
          EXPECT_GE(in_round[replica] * most, i * round.steps[replica]);
          EXPECT_LT(in_round[replica] * most, i * round.steps[replica] + most);
        }
      }
      EXPECT_EQ(in_round, round.steps);
      inner += most;
      before = round.steps_after();
      EXPECT_EQ(steps_after(steps, inner), before);
    }
    EXPECT_EQ(last_inner_step(steps), inner);
    for (uint64_t step = begun + 1; step <= steps.steps; ++step) EXPECT_EQ(made[step], 1u) << step;
  }
}

}  // namespace
}  // namespace weft::replicas
