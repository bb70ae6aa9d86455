// Who is blamed for a run that gets no further.
#include "broker/run/stalls.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tests/support/keys.h"

namespace weft::broker {
namespace {

using test::key;

std::vector<StalledStage> stages_with(const std::vector<uint64_t>& segments) {
  std::vector<StalledStage> stages;
  for (size_t s = 0; s < segments.size(); ++s)
    stages.push_back({key(static_cast<uint8_t>(s + 1)), segments[s]});
  return stages;
}

using Stages = std::vector<uint32_t>;

TEST(Stalls, ThoseWhoOweTheirPartOfASnapshotAreAllCertain) {
  const Suspects suspects = suspects_of({{1, 3}, true}, stages_with({9, 9, 9, 9}), {});
  EXPECT_EQ(suspects.stages, (Stages{1, 3}));
  EXPECT_EQ(suspects.certain, 2u);
}

TEST(Stalls, OneThatOthersWentPastHasOnlyKeptSilent) {
  const Suspects suspects = suspects_of({{2}, false}, stages_with({9, 9, 9, 9}), {});
  EXPECT_EQ(suspects.stages.front(), 2u);
  EXPECT_EQ(suspects.certain, 1u);
}

TEST(Stalls, WhereGradientsEndTheDeepestOrItsNeighbourIsSuspected) {
  const Suspects suspects = suspects_of({{0, 1}, false}, stages_with({9, 9, 9, 9}), {});
  EXPECT_EQ(suspects.stages, (Stages{1, 2}));
  EXPECT_EQ(suspects.certain, 0u);
  EXPECT_EQ(suspects.marks.size(), 2u) << "the others are cleared";
}

TEST(Stalls, TheFirstMayLackAGradient) {
  const Suspects suspects = suspects_of({{0}, false}, stages_with({9, 9}), {});
  EXPECT_EQ(suspects.stages, (Stages{0, 1}));
  EXPECT_EQ(suspects.certain, 0u);
}

TEST(Stalls, OfAllTheEarliestThatDidLeast) {
  EXPECT_EQ(suspects_of({}, stages_with({9, 7, 7, 8}), {}).stages, (Stages{1, 2, 0, 3}));
  EXPECT_EQ(suspects_of({}, stages_with({5}), {}).stages, (Stages{0}));
}

// Two pipelines of three stages, stage by stage.
std::vector<StalledStage> stages_of_replicas(const std::vector<uint64_t>& segments) {
  std::vector<StalledStage> stages = stages_with(segments);
  for (uint32_t s = 0; s < stages.size(); ++s) stages[s].replica = s % 2;
  return stages;
}

TEST(Stalls, NeighboursAreOfOneReplica) {
  const auto stages = stages_of_replicas({9, 9, 9, 9, 9, 9});
  EXPECT_EQ(suspects_of({{1, 3}, false}, stages, {}).stages, (Stages{3, 5}));
  EXPECT_EQ(suspects_of({{1}, false}, stages, {}).certain, 0u) << "the first of its pipeline";
  EXPECT_EQ(suspects_of({{3}, false}, stages, {}).certain, 1u);
  EXPECT_EQ(suspects_of({}, stages_of_replicas({9, 9, 9, 3, 9, 9}), {}).stages, (Stages{3, 5, 1, 0, 2, 4}));
}

// As of a run that is one pipeline: whoever sends nothing may stand before the one that said least.
TEST(Stalls, OfAReplicaThatIsMissingAsAWholeAnyStageMayBe) {
  EXPECT_EQ(suspects_of({{1, 3, 5}, false}, stages_of_replicas({9, 9, 9, 9, 9, 3}), {}).stages,
            (Stages{5, 3, 1}));
  EXPECT_EQ(suspects_of({{1, 3, 5}, false}, stages_of_replicas({9, 9, 9, 3, 9, 9}), {}).stages,
            (Stages{3, 5, 1}));
  EXPECT_EQ(
      suspects_of({{1, 3, 5}, false}, stages_of_replicas({9, 9, 9, 9, 9, 3}), {{key(4), 5}}).stages.front(),
      3u)
      << "who was there each time";
}

TEST(Stalls, WhereReplicasAreToAgreeAnyOfThemMayLackWhatAnotherOwes) {
  const auto stages = stages_of_replicas({9, 9, 9, 9, 9, 9});
  const MissingReports missing{.stages = {0, 1, 2}, .is_own = false, .is_mutual = true};
  EXPECT_EQ(suspects_of(missing, stages, {}).stages, (Stages{2, 4, 0, 1}));
  EXPECT_EQ(suspects_of({.stages = {3}, .is_mutual = true}, stages, {}).certain, 0u);
  EXPECT_EQ(suspects_of(missing, stages, {{stages[1].peer, 3}}).stages.front(), 1u) << "who was there before";
}

// Whoever computes and sends nothing, whatever it says of itself, is found by who was there each time: after
// a few times as many stalls as the run has stages, whoever is taken for one that did least.
TEST(Stalls, WhoIsThereEachTimeIsFound) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 1);
    const auto count = static_cast<uint32_t>(2 + rng.below(7));
    const auto liar = static_cast<uint32_t>(rng.below(count));
    std::vector<StalledStage> stages = stages_with(std::vector<uint64_t>(count, 0));
    const PeerId lying = stages[liar].peer;
    uint8_t next = 100;
    StallMarks marks;
    uint32_t stalls = 0;
    while (stages[liar].peer == lying) {
      ASSERT_LE(++stalls, 3 * count);
      for (StalledStage& stage : stages) stage.segments = rng.below(3);
      const Suspects suspects = suspects_of({}, stages, marks);
      ASSERT_EQ(suspects.stages.size(), count);
      for (const auto& [id, more] : suspects.marks) marks[id] += more;
      stages[suspects.stages.front()].peer = key(next++);
    }
  }
}

}  // namespace
}  // namespace weft::broker
