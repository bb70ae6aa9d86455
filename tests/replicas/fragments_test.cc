// Parts of a model that are agreed about in turn.
#include "replicas/fragments.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "replicas/local_steps.h"

namespace weft::replicas {
namespace {

TEST(Fragments, AreAboutEquallyLarge) {
  EXPECT_EQ(fragments_of(std::vector<uint64_t>{5, 5, 5, 5, 5}, 2), (std::vector<uint32_t>{0, 1, 0, 1, 0}));
  EXPECT_EQ(fragments_of(std::vector<uint64_t>{1, 9, 4, 4, 1}, 3), (std::vector<uint32_t>{1, 0, 1, 2, 2}));
  EXPECT_EQ(fragments_of(std::vector<uint64_t>{7}, 4), (std::vector<uint32_t>{0}));
  EXPECT_TRUE(fragments_of({}, 4).empty());
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 72);
    std::vector<uint64_t> elements(1 + rng.below(200));
    for (uint64_t& each : elements) each = rng.below(uint64_t{1} << rng.below(30));
    const auto count = static_cast<uint32_t>(1 + rng.below(kFragmentsMax));
    const std::vector<uint32_t> fragments = fragments_of(elements, count);
    std::vector<uint64_t> filled(count, 0);
    for (size_t place = 0; place < elements.size(); ++place) filled.at(fragments[place]) += elements[place];
    const uint64_t all = std::reduce(elements.begin(), elements.end());
    EXPECT_LE(*std::ranges::max_element(filled), all / count + *std::ranges::max_element(elements))
        << "who has least has no more than an equal part, and takes the next";
    EXPECT_EQ(fragments, fragments_of(elements, count));
  }
}

LocalSteps overlapping(uint32_t count, uint64_t every, uint64_t steps, uint64_t settle_every,
                       uint32_t fragments) {
  LocalSteps local{.terms = {.count = count, .every = every}, .steps = steps};
  local.terms.settle_every = settle_every;
  local.terms.fragments = fragments;
  return local;
}

TEST(Fragments, TakeTurnsUntilAllWait) {
  const LocalSteps run = overlapping(2, 2, 38, 5, 3);  // rounds of 4 steps; to 20 and 38 all wait
  ASSERT_TRUE(is_valid(run));
  std::vector<int> about;
  for (uint64_t end = next_end(run, 1); about.size() < 10; end = next_end(run, end + 1)) {
    const OuterRound round = round_of(run, end);
    about.push_back(round.overlaps ? static_cast<int>(round.fragment) : -1);
    for (uint32_t fragment = 0; fragment < 3; ++fragment)
      EXPECT_EQ(round.is_about(fragment), !round.overlaps || round.fragment == fragment);
    if (end == last_inner_step(run)) break;
  }
  EXPECT_EQ(about, (std::vector<int>{0, 1, 2, 0, -1, 2, 0, 1, 2, -1}));
  EXPECT_FALSE(is_valid(overlapping(2, 2, 38, 1, 3))) << "none overlaps";
  EXPECT_FALSE(is_valid(overlapping(2, 2, 38, 5, 0)));
  EXPECT_FALSE(is_valid(overlapping(2, 2, 38, 5, kFragmentsMax + 1)));
}

// Counted step by step.
TEST(Fragments, ADifferenceIsOfTheStepsSinceTheOneBefore) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 73);
    const auto count = static_cast<uint32_t>(1 + rng.below(5));
    LocalSteps run = overlapping(count, 1 + rng.below(5), 1 + rng.below(200), 2 + rng.below(9),
                                 static_cast<uint32_t>(1 + rng.below(5)));
    run.begun_after = rng.below(run.steps);
    if (count > 1 && rng.below(3) == 0) {
      for (uint32_t replica = 0; replica < count; ++replica)
        run.terms.shares.push_back(1 + rng.below(run.terms.every));
      run.terms.shares.front() = run.terms.every;
    } else if (count > 2 && rng.below(2) == 0) {
      run.terms.followers = {1};
    }
    ASSERT_TRUE(is_valid(run));
    std::vector<std::vector<uint64_t>> since(count, std::vector<uint64_t>(run.terms.fragments, 0));
    for (uint64_t inner = run.begun_after + 1; inner <= last_inner_step(run); ++inner) {
      for (uint32_t replica = 0; replica < count; ++replica)
        if (own_step(run, replica, inner))
          for (uint64_t& steps : since[replica]) ++steps;
      if (!ends_round(run, inner)) continue;
      for (uint32_t replica = 0; replica < count; ++replica)
        for (uint32_t fragment = 0; fragment < run.terms.fragments; ++fragment) {
          EXPECT_EQ(steps_since(run, inner, fragment)[replica], since[replica][fragment])
              << "replica " << replica << ", fragment " << fragment << " at " << inner;
          if (round_of(run, inner).is_about(fragment)) since[replica][fragment] = 0;
        }
    }
  }
}

TEST(Fragments, WhoIsLeftOutIsKnownToHaveLearntSomethingBefore) {
  const LocalSteps run = overlapping(3, 1, 60, 10, 3);
  const Without made = without(run, 4, {1});
  ASSERT_EQ(made.rounds.size(), 2u);
  for (const OuterRound& round : made.rounds) EXPECT_EQ(round.absent, (std::vector<uint32_t>{1}));
  EXPECT_TRUE(made.rounds.front().overlaps && made.rounds.front().fragment == 2);
  EXPECT_TRUE(!made.rounds.back().overlaps && made.rounds.back().fragment == 0);
  const LocalSteps whole = overlapping(3, 1, 60, 10, 1);
  EXPECT_TRUE(without(whole, 4, {1}).rounds.back().absent.empty()) << "it made no step in the round";
}

}  // namespace
}  // namespace weft::replicas
