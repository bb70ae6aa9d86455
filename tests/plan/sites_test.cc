// Plans in which no site may be left out.
#include "plan/sites.h"

#include <gtest/gtest.h>

#include <set>

#include "base/rng.h"
#include "plan/plan.h"
#include "plan/strategy.h"
#include "tests/plan/graphs.h"
#include "tests/plan/lawful.h"

namespace weft::plan {
namespace {

// Sites of `each` devices, the first site far faster than the others, slow links between them.
ClusterView slow_sites(Rng& rng, uint32_t sites, uint32_t each) {
  std::vector<DeviceView> devices;
  for (uint32_t site = 0; site < sites; ++site)
    for (uint32_t i = 0; i < each; ++i) {
      devices.push_back(test::device(std::to_string(site) + "-" + std::to_string(i),
                                     site == 0 ? 200 : 20 * static_cast<double>(1 + rng.below(3))));
      devices.back().region = "site" + std::to_string(site);
      devices.back().site = site;
    }
  ClusterView cluster(std::move(devices));
  for (uint32_t from = 0; from < sites; ++from)
    for (uint32_t to = 0; to < sites; ++to)
      if (from != to) cluster.set_between(from, to, {1e6, std::chrono::milliseconds(20)});
  return cluster;
}

std::set<uint32_t> sites_with_parameters(const PlanRequest& request, const Plan& plan) {
  std::set<uint32_t> sites;
  for (const dag::Initializer& one : request.graph->initializers())
    if (one.role == dag::InitializerRole::Parameter) {
      const uint32_t op = request.graph->value(one.value).producer.index;
      sites.insert(request.cluster.devices()[plan.stages[plan.stage_of_op[op]].devices[0]].site);
    }
  return sites;
}

TEST(Sites, EveryStrategyKeepsThem) {
  for (uint64_t seed = 1; seed <= 6; ++seed)
    for (const NamedStrategy& strategy : strategies()) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(strategy.name));
      Rng rng(seed, 3);
      const dag::Graph graph = seed % 2 ? test::chain(seed, 24) : test::branches(seed, 24);
      PlanRequest request{.graph = &graph,
                          .microbatches = 8,
                          .optimizer_slots = 1,
                          .equal_bits = EqualBits::Ignore,
                          .cluster = slow_sites(rng, 3, 2),
                          .strategy = std::string(strategy.name)};
      const auto without = make_plan(request);
      ASSERT_TRUE(without.has_value()) << without.error().message;
      request.every_site = true;
      const auto plan = make_plan(request);
      ASSERT_TRUE(plan.has_value()) << plan.error().message;
      test::expect_lawful(request, *plan);
      EXPECT_EQ(sites_with_parameters(request, *plan).size(), 3u);
      if (!strategy.is_baseline) {
        EXPECT_GE(plan->predicted_step, without->predicted_step);
      }
    }
}

TEST(Sites, TheDefaultIsNeverWorseThanAnyOther) {
  Rng rng(5, 3);
  const dag::Graph graph = test::chain(5, 24);
  PlanRequest request{.graph = &graph,
                      .microbatches = 8,
                      .equal_bits = EqualBits::Ignore,
                      .cluster = slow_sites(rng, 4, 3),
                      .every_site = true};
  const auto best = make_plan(request);
  ASSERT_TRUE(best.has_value()) << best.error().message;
  for (const NamedStrategy& strategy : strategies()) {
    request.strategy = strategy.name;
    const auto plan = make_plan(request);
    ASSERT_TRUE(plan.has_value()) << strategy.name << ": " << plan.error().message;
    EXPECT_LE(best->predicted_step, plan->predicted_step) << strategy.name;
  }
}

TEST(Sites, FewerStagesThanSitesAreRefused) {
  Rng rng(1, 3);
  const dag::Graph graph = test::chain(1, 24);
  const auto plan = make_plan({.graph = &graph,
                               .stages = 2,
                               .equal_bits = EqualBits::Ignore,
                               .cluster = slow_sites(rng, 3, 2),
                               .every_site = true});
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code, ErrorCode::Infeasible);
  EXPECT_NE(plan.error().message.find("there are 3 sites, stages: 2 is fewer"), std::string::npos)
      << plan.error().message;
}

}  // namespace
}  // namespace weft::plan
