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

TEST(LocalSteps, GoesOnFromWhereARunWas) {
  const LocalSteps run = local(2, 3, 20, 11);
  EXPECT_EQ(own_step(run, 0, 12), (OwnStep{12, 12}));
  EXPECT_EQ(own_step(run, 1, 12), (OwnStep{15, 12}));
  EXPECT_EQ(steps_after(run, 11), 11u);
  EXPECT_EQ(last_inner_step(run), 16u);
}

// What the rounds deal one after the other is what the inner steps deal side by side: each step of the run
// once, to the replica and at the place that its round says.
TEST(LocalSteps, AreTheStepsOfTheRounds) {
  const uint64_t seed = 20260917;
  Rng rng(seed, 1);
  for (int run = 0; run < 300; ++run) {
    SCOPED_TRACE("seed " + std::to_string(seed) + ", run " + std::to_string(run));
    const uint64_t begun = rng.below(50);
    const LocalSteps steps =
        local(1 + static_cast<uint32_t>(rng.below(9)), 1 + rng.below(12), begun + 1 + rng.below(300), begun);
    ASSERT_TRUE(is_valid(steps));
    std::vector<uint32_t> made(steps.steps + 1);
    uint64_t inner = begun;
    for (uint64_t before = begun; before < steps.steps;) {
      const OuterRound round = next_round(steps.terms, before, steps.steps);
      const uint64_t most = *std::max_element(round.steps.begin(), round.steps.end());
      for (uint64_t i = 1; i <= most; ++i) {
        EXPECT_EQ(round_of(steps, inner + i), round);
        EXPECT_EQ(agrees_after(steps, inner + i), i == most);
        EXPECT_EQ(next_agreement(steps, inner + i), inner + most);
        for (uint32_t replica = 0; replica < steps.terms.count; ++replica) {
          const auto own = own_step(steps, replica, inner + i);
          ASSERT_EQ(own.has_value(), round.steps[replica] >= i);
          if (!own) continue;
          const LocalStep place = locate(round, own->step);
          EXPECT_EQ(place.replica, replica);
          EXPECT_EQ(place.index, i - 1);
          EXPECT_EQ(place.scheduled, own->scheduled);
          ++made[own->step];
        }
      }
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
