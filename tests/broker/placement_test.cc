// Who takes which stage.
#include "broker/place/placement.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"
#include "broker/pool/candidates.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using test::key;

Applicant applicant(uint8_t n, int64_t memory = 100) { return {.peer = key(n), .memory = memory}; }

using Placed = std::optional<std::vector<uint32_t>>;
Placed at(std::vector<uint32_t> placed) { return placed; }

TEST(PlaceAgain, WhoIsThereKeepsItsStage) {
  const auto placed =
      place_again({{key(1), 10}, {key(2), 10}, {key(3), 10}}, {applicant(9), applicant(3), applicant(1)});
  EXPECT_EQ(placed, at({2, 0, 1}));
}

TEST(PlaceAgain, OneThatStandsByForTheStageIsPreferredWithTheNewestTensors) {
  Applicant any = applicant(7), other = applicant(8), old = applicant(9), newest = applicant(10);
  other.standing_by = {{1, 50}};
  old.standing_by = {{0, 40}};
  newest.standing_by = {{0, 50}};
  EXPECT_EQ(place_again({{key(1), 10}}, {any, other, old, newest}), at({3}));
  EXPECT_EQ(place_again({{key(1), 10}}, {any, other, old}), at({2}));
  EXPECT_EQ(place_again({{key(1), 10}}, {other, any}), at({1})) << "the other's stage may need it";
}

TEST(PlaceAgain, EqualBitsComeBeforeReadinessAndThenTheSameOps) {
  Applicant other_bits = applicant(7), other_ops = applicant(9), same = applicant(8);
  other_bits.device_class.fingerprint = "another";
  other_bits.standing_by = {{0, 50}};
  other_ops.device_class = {.traits = {.fuse_elementwise = true}, .fingerprint = "a third"};
  other_ops.standing_by = {{0, 50}};
  EXPECT_EQ(place_again({{key(1), 10}}, {other_bits, other_ops, same}), at({2}));
  EXPECT_EQ(place_again({{key(1), 10}}, {other_ops, other_bits}), at({1}));
  EXPECT_EQ(place_again({{key(1), 10}}, {other_ops}), at({0}));
  EXPECT_EQ(place_again({{key(1), 10}}, {other_ops, other_bits}, /*equal_bits=*/true), Placed());
  EXPECT_EQ(place_again({{key(1), 10}}, {other_ops, same}, /*equal_bits=*/true), at({1}));
}

TEST(PlaceAgain, APinnedStageGoesToNobodyElse) {
  const StageToPlace pinned{.peer = key(1), .memory = 10, .device_class = {}, .pinned = true};
  EXPECT_EQ(place_again({pinned, {key(2), 10}}, {applicant(8), applicant(9)}), Placed());
  EXPECT_EQ(place_again({pinned, {key(2), 10}}, {applicant(8), applicant(1)}), at({1, 0}));
}

TEST(PlaceAgain, AnOwnersStageStaysOnThatOwnersMachines) {
  const StageToPlace hers{.peer = key(1), .memory = 10, .device_class = {}, .owner = "anna"};
  Applicant other = applicant(8), another = applicant(9);
  other.owner = "ben", another.owner = "anna";
  other.standing_by = {{0, 50}};
  EXPECT_EQ(place_again({hers}, {other, another}), at({1}));
  EXPECT_EQ(place_again({hers}, {other}), Placed());
  EXPECT_EQ(place_again({hers, {key(2), 10}}, {other, another}), at({1, 0})) << "the other is anybody's";
}

TEST(PlaceAgain, EachStageHasItsOwnClass) {
  const proto::DeviceClass a{.traits = {}, .fingerprint = "a"}, b{.traits = {}, .fingerprint = "b"};
  Applicant one = applicant(7), two = applicant(8);
  one.device_class = b;
  two.device_class = a;
  EXPECT_EQ(place_again({{key(1), 10, a}, {key(2), 10, b}}, {one, two}), at({1, 0}));
}

TEST(PlaceAgain, APeerTakesNoMoreThanItHasMemoryForAndNotTwoStages) {
  EXPECT_EQ(place_again({{key(1), 200}}, {applicant(7, 100)}), Placed());
  EXPECT_EQ(place_again({{key(1), 10}, {key(2), 10}}, {applicant(7)}), Placed());
  EXPECT_EQ(place_again({{key(1), 10}, {key(2), 80}}, {applicant(7, 100), applicant(8, 50)}), at({1, 0}))
      << "the larger one fits only one of them";
}

TEST(PlaceAgain, TheFasterPeerIsPreferredAndAWarmOneThatIsAboutAsFast) {
  Applicant slow = applicant(7), fast = applicant(8), warm = applicant(9);
  warm.standing_by = {{0, 50}};
  const std::vector<Applicant> all = {slow, fast, warm};
  const auto with = [&](double warm_seconds) {
    return place_again({{key(1), 10}}, all, false, [=](std::span<const uint32_t> placed) {
      return placed[0] == 0 ? 3.0 : placed[0] == 1 ? 1.0 : warm_seconds;
    });
  };
  EXPECT_EQ(with(1.05), at({2}));
  EXPECT_EQ(with(1.5), at({1}));
}

TEST(PlaceAgain, TwoStagesChangePlacesWhereThatIsFaster) {
  // Each of the two is fast for one of the stages.
  const StepSeconds seconds = [](std::span<const uint32_t> placed) {
    return (placed[0] == 1 ? 1.0 : 4.0) + (placed[1] == 0 ? 1.0 : 4.0);
  };
  EXPECT_EQ(place_again({{key(1), 10}, {key(2), 10}}, {applicant(7), applicant(8)}, false, seconds),
            at({1, 0}));
  EXPECT_EQ(place_again({{key(7), 10}, {key(2), 10}}, {applicant(7), applicant(8)}, false, seconds),
            at({0, 1}))
      << "who is there keeps its stage";
}

TEST(PlaceAgain, EqualBitsComeBeforeSpeed) {
  Applicant other_bits = applicant(7), same = applicant(8);
  other_bits.device_class.fingerprint = "another";
  const StepSeconds seconds = [](std::span<const uint32_t> placed) { return placed[0] == 0 ? 1.0 : 9.0; };
  EXPECT_EQ(place_again({{key(1), 10}}, {other_bits, same}, false, seconds), at({1}));
}

// Against trying everything.
TEST(PlaceAgain, FindsAPlacementWheneverThereIsOne) {
  for (uint64_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    std::vector<StageToPlace> stages;
    std::vector<Applicant> applicants;
    for (uint8_t s = 0; s < 1 + rng.below(4); ++s)
      stages.push_back({key(s), static_cast<int64_t>(rng.below(5))});
    for (uint8_t a = 0; a < rng.below(6); ++a) {
      applicants.push_back(applicant(static_cast<uint8_t>(rng.below(3) == 0 ? a : 100 + a),
                                     static_cast<int64_t>(rng.below(5))));
      if (rng.below(2) == 0) applicants.back().device_class.fingerprint = "another";
      if (rng.below(2) == 0) applicants.back().standing_by = {{static_cast<uint32_t>(rng.below(4)), 3}};
    }
    const bool equal_bits = rng.below(2) == 0;
    const auto may = [&](uint32_t s, uint32_t a) {
      if (applicants[a].peer == stages[s].peer) return true;
      for (const auto& stage : stages)
        if (stage.peer == applicants[a].peer) return false;
      const bool same = applicants[a].device_class == stages[s].device_class;
      return (same || !equal_bits) && applicants[a].memory >= stages[s].memory;
    };
    bool possible = false;
    std::vector<uint32_t> order(applicants.size());
    for (uint32_t a = 0; a < order.size(); ++a) order[a] = a;
    if (applicants.size() >= stages.size()) do {
        bool all = true;
        for (uint32_t s = 0; s < stages.size(); ++s) all = all && may(s, order[s]);
        possible = possible || all;
      } while (std::next_permutation(order.begin(), order.end()));
    const auto placed = place_again(stages, applicants, equal_bits);
    ASSERT_EQ(placed.has_value(), possible);
    if (!placed) continue;
    for (uint32_t s = 0; s < stages.size(); ++s) {
      EXPECT_TRUE(may(s, (*placed)[s]));
      for (uint32_t other = 0; other < s; ++other) EXPECT_NE((*placed)[s], (*placed)[other]);
    }
  }
}

TEST(DealStages, InTurnWithFewerAndWithMoreHoldersThanStages) {
  const std::vector<StageToHold> stages(3, {10, 20});
  EXPECT_EQ(deal_stages(stages, {{100, 100}, {100, 100}}).by_holder,
            (std::vector<std::vector<uint32_t>>{{0, 2}, {1}}));
  EXPECT_EQ(deal_stages(stages, std::vector<Holder>(5, {100, 100})).by_holder,
            (std::vector<std::vector<uint32_t>>{{0}, {1}, {2}, {0}, {1}}));
}

TEST(DealStages, ToTheStagesOwnKindFirstAndThenToAny) {
  const std::vector<StageToHold> stages = {{10, 20, "a"}, {10, 20, "b"}, {10, 20, "d"}};
  const std::vector<Holder> holders = {{100, 100, "b"}, {100, 100, "a"}, {100, 100, "c"}, {100, 100, "b"}};
  EXPECT_EQ(deal_stages(stages, holders).by_holder, (std::vector<std::vector<uint32_t>>{{1}, {0}, {2}, {1}}));
  EXPECT_EQ(deal_stages(stages, holders, /*equal_bits=*/true).by_holder,
            (std::vector<std::vector<uint32_t>>{{1}, {0}, {}, {1}}));
}

TEST(DealStages, AnOwnersStageOnlyToThatOwner) {
  const std::vector<StageToHold> stages = {{10, 10, "f", "anna"}, {10, 10, "f", "ben"}, {10, 10, "f", ""}};
  const std::vector<Holder> holders = {{100, 100, "f", "ben"}, {100, 100, "f", "carla"}};
  const auto dealt = deal_stages(stages, holders).by_holder;
  EXPECT_EQ(
      std::count(dealt[0].begin(), dealt[0].end(), 0u) + std::count(dealt[1].begin(), dealt[1].end(), 0u), 0);
  EXPECT_EQ(std::count(dealt[0].begin(), dealt[0].end(), 1u), 1);
  EXPECT_EQ(std::count(dealt[1].begin(), dealt[1].end(), 1u), 0);
  EXPECT_EQ(dealt[1], std::vector<uint32_t>{2});
}

TEST(DealStages, NobodyHoldsMoreThanThereIsRoomFor) {
  const std::vector<StageToHold> stages = {{10, 20}, {10, 200}, {50, 60}};
  EXPECT_EQ(deal_stages(stages, {{100, 15}, {300, 65}}).by_holder,
            (std::vector<std::vector<uint32_t>>{{0}, {1, 2}}));
  EXPECT_EQ(deal_stages(stages, {{5, 5}}).by_holder, (std::vector<std::vector<uint32_t>>{{}}));
}

TEST(DeviceViews, TakeTheThreadsThatThePeerSays) {
  std::vector<Candidate> candidates(2);
  candidates[0].device = {.device = "an old box", .threads = 4};
  candidates[1].device = {.device = "cpu:4"};  // it does not say
  const std::vector<plan::DeviceView> views = device_views(candidates);
  EXPECT_EQ(views[0].threads, 4u);
  EXPECT_EQ(views[1].threads, 0u);
}

}  // namespace
}  // namespace weft::broker
