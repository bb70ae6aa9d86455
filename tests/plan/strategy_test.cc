// The strategies: every plan lawful, the default never worse than what one does without a search, on random
// graphs' clusters of devices.
#include "plan/strategy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "plan/plan.h"
#include "tests/plan/graphs.h"
#include "tests/plan/lawful.h"

namespace weft::plan {
namespace {

dag::Graph any_graph(uint64_t seed, Rng& rng) {
  const auto layers = static_cast<int64_t>(4 + rng.below(12));
  switch (rng.below(5)) {
    case 0:
      return test::training_graph("transformer", seed);
    case 1:
      return test::training_graph("residual", seed);
    case 2:
      return test::training_graph("dense", seed);
    case 3:
      return test::branches(seed, layers);
    default:
      return test::chain(seed, layers);
  }
}
// Of three jobs one is short of memory: from such that hardly anything fits.
PlanRequest any_request(const dag::Graph& graph, Rng& rng) {
  const double room = rng.below(3) == 0 ? std::pow(10, 5 + 2 * rng.uniform()) : 4e9;
  return {.graph = &graph,
          .microbatches = static_cast<uint32_t>(1 + rng.below(12)),
          .optimizer_slots = static_cast<uint32_t>(rng.below(3)),
          .clips_norm = rng.below(4) == 0,
          .equal_bits = EqualBits::Ignore,
          .cluster = test::random_cluster(rng, static_cast<uint32_t>(1 + rng.below(10)), room)};
}

// WEFT_PLAN_SEEDS=1000 looks at as many.
TEST(Strategies, AreLawfulAndTheDefaultIsNeverWorseThanABaseline) {
  const test::Seeds seeds = test::seeds(40);
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 21);
    const dag::Graph graph = any_graph(seed, rng);
    PlanRequest request = any_request(graph, rng);
    const auto best = make_plan(request);
    if (best) test::expect_lawful(request, *best);
    for (const NamedStrategy& strategy : strategies()) {
      if (!strategy.is_baseline) continue;
      request.strategy = strategy.name;
      const auto plan = make_plan(request);
      if (!plan) continue;
      test::expect_lawful(request, *plan);
      ASSERT_TRUE(best.has_value()) << strategy.name << " finds a plan: " << best.error().message;
      EXPECT_LE(best->predicted_step, plan->predicted_step) << strategy.name;
    }
  }
}

TEST(Strategies, OpFenceCrossesBetweenRegionsOnceAndUsesEveryDevice) {
  const dag::Graph graph = test::training_graph("gpt");
  std::vector<DeviceView> devices;
  for (const char* name : {"w1", "e1", "w2", "e2", "w3"})
    devices.push_back(test::device(name, name[0] == 'w' ? 100 : 50, std::string(1, name[0])));
  ClusterView cluster(devices);
  for (size_t a = 0; a < devices.size(); ++a)
    for (size_t b = 0; b < devices.size(); ++b)
      cluster.set_link(a, b, {devices[a].region == devices[b].region ? 1.25e9 : 12.5e6, {}});
  const auto plan =
      make_plan({.graph = &graph, .microbatches = 8, .cluster = cluster, .strategy = "op-fence"});
  ASSERT_TRUE(plan.has_value()) << plan.error().message;
  ASSERT_EQ(plan->stages.size(), devices.size());
  int crossings = 0;
  for (size_t s = 1; s < plan->stages.size(); ++s)
    crossings += devices[plan->stages[s].devices[0]].region != devices[plan->stages[s - 1].devices[0]].region;
  EXPECT_EQ(crossings, 1);
  double seconds_of_west = 0, seconds_of_east = 0;
  for (const StagePlan& stage : plan->stages)
    (devices[stage.devices[0]].region == "w" ? seconds_of_west : seconds_of_east) +=
        seconds(stage.forward + stage.backward);
  EXPECT_LT(seconds_of_west / 3, 2 * seconds_of_east / 2) << "work by speed";
  EXPECT_LT(seconds_of_east / 2, 2 * seconds_of_west / 3);
}

TEST(Strategies, AnUnknownOneIsRefusedWithTheNamesThereAre) {
  const dag::Graph graph = test::training_graph("residual");
  const auto plan =
      make_plan({.graph = &graph, .microbatches = 2, .cluster = test::equal_devices(2), .strategy = "fence"});
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().message.find("auto, op-fence, equal-ops"), std::string::npos)
      << plan.error().message;
}

}  // namespace
}  // namespace weft::plan
