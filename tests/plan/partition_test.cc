#include "plan/partition.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>

#include "plan/placement.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

// Every way to cut n positions into non-empty stages.
void for_each_cut(uint32_t positions, uint32_t stages,
                  const std::function<void(const std::vector<uint32_t>&)>& visit) {
  std::vector<uint32_t> ends;
  const std::function<void(uint32_t)> extend = [&](uint32_t begin) {
    const auto left = static_cast<uint32_t>(stages - ends.size());
    if (left == 1) {
      ends.push_back(positions);
      visit(ends);
      ends.pop_back();
      return;
    }
    for (uint32_t end = begin + 1; end + left - 1 <= positions; ++end) {
      ends.push_back(end);
      extend(end);
      ends.pop_back();
    }
  };
  extend(0);
}

struct Best {
  double bottleneck = std::numeric_limits<double>::infinity();
  double sum = std::numeric_limits<double>::infinity();  // with any bottleneck up to the bound
};
Best brute_force(const PartitionProblem& problem, double bottleneck_max) {
  Best best;
  for_each_cut(problem.tail, static_cast<uint32_t>(problem.stages.size()),
               [&](const std::vector<uint32_t>& ends) {
                 if (problem.ring && ends.front() < problem.ring->head_end) return;
                 StageCost total;
                 for (uint32_t s = 0; s < ends.size(); ++s) {
                   const uint32_t begin = s == 0 ? 0 : ends[s - 1];
                   if (!problem.fits(begin, ends[s], s)) return;
                   const StageCost cost = problem.cost(s, begin, ends[s]);
                   total.bottleneck = std::max(total.bottleneck, cost.bottleneck);
                   total.sum += cost.sum;
                 }
                 best.bottleneck = std::min(best.bottleneck, total.bottleneck);
                 if (total.bottleneck <= bottleneck_max) best.sum = std::min(best.sum, total.sum);
               });
  return best;
}

TEST(Partition, IsNeverWorseThanAnyOther) {
  int bounded_by_memory = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 8);
    const dag::Graph graph = seed % 2 == 0 ? test::chain(seed, 6) : test::training_graph("residual", seed);
    const Model model = make_model(graph, {}, 14);
    const auto stages = static_cast<uint32_t>(1 + rng.below(4));
    PlanRequest request{.graph = &graph, .microbatches = 4, .cluster = test::random_cluster(rng, stages)};
    std::vector<uint32_t> order;
    for (uint32_t s = 0; s < stages; ++s) order.push_back(s);
    PartitionProblem problem = partition_problem(request, model, order);
    if (rng.below(2) == 0)
      for (auto& stage : problem.stages) stage.memory = static_cast<int64_t>(rng.below(600000));
    const auto least = least_bottleneck(problem);
    const Best best = brute_force(problem, std::numeric_limits<double>::infinity());
    ASSERT_EQ(least.has_value(), best.bottleneck < std::numeric_limits<double>::infinity());
    if (!least) {
      ++bounded_by_memory;
      continue;
    }
    EXPECT_NEAR(least->cost.bottleneck, best.bottleneck, 1e-9 * best.bottleneck);
    for (const double factor : {1.0, 1.2, 3.0}) {
      const double bound = least->cost.bottleneck * factor * (1 + 1e-12);
      const auto short_one = least_sum(problem, bound);
      ASSERT_TRUE(short_one.has_value());
      EXPECT_LE(short_one->cost.bottleneck, bound);
      EXPECT_NEAR(short_one->cost.sum, brute_force(problem, bound).sum, 1e-9 * short_one->cost.sum);
    }
  }
  EXPECT_GT(bounded_by_memory, 0) << "some should not fit";
}

// A ring's first stage has the tail's work and memory besides, and a link from the last.
TEST(Partition, OfARingIsNeverWorseThanAnyOther) {
  int bounded_by_memory = 0, found = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 9);
    const dag::Graph graph = test::gpt({.layers = 8,
                                        .width = 32,
                                        .heads = 2,
                                        .vocabulary = 256,
                                        .tokens = 8 * static_cast<int64_t>(1 + seed % 4)});
    const Model model = make_model(graph, {}, 16);
    ASSERT_TRUE(model.ring.has_value());
    const auto stages = static_cast<uint32_t>(2 + rng.below(3));
    PlanRequest request{.graph = &graph, .microbatches = 4, .cluster = test::random_cluster(rng, stages)};
    std::vector<uint32_t> order;
    for (uint32_t s = 0; s < stages; ++s) order.push_back(s);
    PartitionProblem problem = ring_problem(request, model, order, model.ring->tails.front());
    if (rng.below(2) == 0)
      for (auto& stage : problem.stages) stage.memory = static_cast<int64_t>(rng.below(1'500'000));
    const auto least = least_bottleneck(problem);
    const Best best = brute_force(problem, std::numeric_limits<double>::infinity());
    ASSERT_EQ(least.has_value(), best.bottleneck < std::numeric_limits<double>::infinity());
    if (!least) {
      ++bounded_by_memory;
      continue;
    }
    ++found;
    EXPECT_NEAR(least->cost.bottleneck, best.bottleneck, 1e-9 * best.bottleneck);
    EXPECT_EQ(least->ends.back(), problem.tail);
    const double bound = least->cost.bottleneck * 1.2;
    const auto short_one = least_sum(problem, bound);
    ASSERT_TRUE(short_one.has_value());
    EXPECT_NEAR(short_one->cost.sum, brute_force(problem, bound).sum, 1e-9 * short_one->cost.sum);
    const auto bisected = partitions_by_bisection(problem, std::array{1.0});
    if (bisected.empty()) continue;  // it takes more memory for worse, and does not look back
    EXPECT_EQ(bisected.front().ends.back(), problem.tail);
    EXPECT_GE(bisected.front().ends.front(), problem.ring->head_end);
    EXPECT_GE(bisected.front().cost.bottleneck, best.bottleneck * (1 - 1e-9));
  }
  EXPECT_GT(bounded_by_memory, 0) << "some should not fit";
  EXPECT_GT(found, 20);
}

TEST(Partition, MoreStagesThanPositionsIsNone) {
  const dag::Graph graph = test::chain(1, 2);
  const Model model = make_model(graph, {}, 3);
  PlanRequest request{.graph = &graph, .cluster = test::equal_devices(5)};
  EXPECT_FALSE(least_bottleneck(partition_problem(request, model, {0, 1, 2, 3, 4})).has_value());
}

}  // namespace
}  // namespace weft::plan
