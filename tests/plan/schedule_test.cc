#include "plan/schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>
#include <vector>

#include "base/rng.h"

namespace weft::plan {
namespace {

const auto kAllThere = [](uint32_t, uint32_t) { return true; };

TEST(NextTask, BackwardGoesFirst) {
  EXPECT_EQ(next_task(std::vector<uint32_t>{3, 1}, kAllThere, 8, 8), (TaskChoice{1, 1}));
}

TEST(NextTask, ForwardFillsTheTimeUntilBackwardCanRun) {
  const auto here = [](uint32_t segment, uint32_t) { return segment == 0; };
  EXPECT_EQ(next_task(std::vector<uint32_t>{3, 1}, here, 8, 8), (TaskChoice{0, 3}));
}

TEST(NextTask, NoMoreEnterThanMayBeInFlight) {
  const auto here = [](uint32_t segment, uint32_t) { return segment == 0; };
  EXPECT_EQ(next_task(std::vector<uint32_t>{3, 1}, here, 8, 2), std::nullopt);
  EXPECT_EQ(next_task(std::vector<uint32_t>{3, 1}, here, 8, 3), (TaskChoice{0, 3}));
  EXPECT_EQ(next_task(std::vector<uint32_t>{0, 0}, here, 8, 0), (TaskChoice{0, 0})) << "at least one";
}

TEST(NextTask, ASegmentWaitsForTheOneBefore) {
  EXPECT_EQ(next_task(std::vector<uint32_t>{1, 1, 1}, kAllThere, 1, 4), std::nullopt);
  EXPECT_EQ(next_task(std::vector<uint32_t>{2, 1, 1}, kAllThere, 2, 4), (TaskChoice{1, 1}));
}

TEST(NextTask, AStageOfOneSegmentRunsAllOfThem) {
  EXPECT_EQ(next_task(std::vector<uint32_t>{2}, kAllThere, 3, 1), (TaskChoice{0, 2}));
  EXPECT_EQ(next_task(std::vector<uint32_t>{3}, kAllThere, 3, 1), std::nullopt);
}

// The rule word by word: of all tasks that may run, the highest segment, then the lowest microbatch.
std::optional<TaskChoice> by_the_word(const std::vector<std::vector<bool>>& done, const auto& here,
                                      uint32_t limit) {
  const auto segments = static_cast<uint32_t>(done.size()),
             microbatches = static_cast<uint32_t>(done[0].size());
  uint32_t between = 0;
  for (uint32_t m = 0; m < microbatches; ++m) between += done[0][m] && !done[segments - 1][m];
  std::set<std::pair<int64_t, uint32_t>> allowed;
  for (uint32_t k = 0; k < segments; ++k)
    for (uint32_t m = 0; m < microbatches; ++m) {
      const bool in_order = !done[k][m] && (m == 0 || done[k][m - 1]) && (k == 0 || done[k - 1][m]);
      if (in_order && here(k, m) && (k > 0 || between < limit)) allowed.insert({-int64_t{k}, m});
    }
  if (allowed.empty()) return std::nullopt;
  return TaskChoice{static_cast<uint32_t>(-allowed.begin()->first), allowed.begin()->second};
}

// Stages with random segments and messages between them: a topological order of all segments is drawn, and
// messages follow it. Every stage's choice is that of the words, and everything gets done.
TEST(NextTask, IsTheRuleAndNeverDeadlocksOnRandomStageGraphs) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 5);
    const auto stages = static_cast<uint32_t>(1 + rng.below(5)),
               microbatches = static_cast<uint32_t>(1 + rng.below(6));
    std::vector<std::pair<uint32_t, uint32_t>> order;  // stage, segment
    std::vector<uint32_t> segments(stages, 0);
    for (uint32_t s = 0; s < stages; ++s) order.push_back({s, segments[s]++});
    for (uint64_t more = rng.below(12); more > 0; --more) {
      const auto s = static_cast<uint32_t>(rng.below(stages));
      order.push_back({s, segments[s]++});
    }
    std::vector<std::pair<size_t, size_t>> messages;
    for (size_t to = 1; to < order.size(); ++to)
      for (size_t from = 0; from < to; ++from)
        if (order[from].first != order[to].first && rng.below(3) == 0) messages.push_back({from, to});

    std::vector<std::vector<std::vector<bool>>> done(stages);  // stage, segment, microbatch
    std::vector<std::vector<uint32_t>> counts(stages);
    std::vector<uint32_t> limit(stages);
    size_t left = 0;
    for (uint32_t s = 0; s < stages; ++s) {
      done[s].assign(segments[s], std::vector<bool>(microbatches, false));
      counts[s].assign(segments[s], 0);
      limit[s] = static_cast<uint32_t>(1 + rng.below(3));
      left += segments[s] * microbatches;
    }
    while (left > 0) {
      std::vector<std::pair<uint32_t, TaskChoice>> possible;
      for (uint32_t s = 0; s < stages; ++s) {
        const auto here = [&](uint32_t segment, uint32_t microbatch) {
          for (const auto& [from, to] : messages)
            if (order[to] == std::pair(s, segment) &&
                !done[order[from].first][order[from].second][microbatch])
              return false;
          return true;
        };
        const auto choice = next_task(counts[s], here, microbatches, limit[s]);
        ASSERT_EQ(choice, by_the_word(done[s], here, limit[s])) << "stage " << s;
        if (choice) possible.push_back({s, *choice});
      }
      ASSERT_FALSE(possible.empty()) << left << " tasks wait for ever";
      const auto& [s, task] = possible[rng.below(possible.size())];
      done[s][task.segment][task.microbatch] = true;
      ++counts[s][task.segment];
      --left;
    }
  }
}

}  // namespace
}  // namespace weft::plan
