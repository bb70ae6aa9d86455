// The default strategy beside every plan there is, where all of them can be looked at.
// WEFT_PLAN_SEEDS=N looks at N instances of each kind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <numeric>

#include "dag/split.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/predict.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

constexpr double kEnough = 1.05;  // of the optimum's step

uint64_t seeds(uint64_t usual) {
  const char* wanted = std::getenv("WEFT_PLAN_SEEDS");
  return wanted ? std::strtoull(wanted, nullptr, 10) : usual;
}

// Works out assignments of positions to stages exactly as the planner does, 1F1B.
class Judge {
 public:
  Judge(const PlanRequest& request, uint32_t positions)
      : request_(request),
        model_(make_model(*request.graph, {}, positions)),
        movable_(dag::movable_sums(*request.graph, {})),
        users_(request.graph->users()) {}

  uint32_t positions() const { return model_.positions; }

  // By stage its device; every stage has a position. Infinite: the segments wait for each other.
  double step(const std::vector<uint32_t>& stage_of_position, const std::vector<uint32_t>& devices) const {
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : model_.position_of_op) stage_of_op.push_back(stage_of_position[position]);
    stage_of_op = dag::move_sums(*request_.graph, movable_, users_,
                                 dag::stages_by_origin(*request_.graph, stage_of_op));
    std::vector<StageDevice> on;
    for (const uint32_t device : devices) on.push_back({request_.cluster.devices()[device].rates, 0});
    const auto pipeline =
        make_pipeline(model_, stage_of_op, on, {request_.microbatches, request_.optimizer_slots, 1});
    if (!pipeline) return std::numeric_limits<double>::infinity();
    PredictRequest asked{.pipeline = &*pipeline,
                         .cluster = &request_.cluster,
                         .devices = devices,
                         .microbatches = request_.microbatches,
                         .in_flight = {}};
    for (uint32_t stage = 0; stage < devices.size(); ++stage)
      asked.in_flight.push_back(
          std::min(request_.microbatches, static_cast<uint32_t>(devices.size()) - stage));
    return seconds(predict(asked).step);
  }

 private:
  const PlanRequest& request_;
  Model model_;
  std::vector<bool> movable_;
  std::vector<std::vector<dag::OpId>> users_;
};

// The least over all rows of devices and all contiguous cuts.
double best_contiguous(const Judge& judge, uint32_t devices) {
  double best = std::numeric_limits<double>::infinity();
  const uint32_t n = judge.positions();
  std::vector<uint32_t> order;
  std::vector<bool> used(devices, false);
  const auto cut = [&](const auto& self, std::vector<uint32_t>& stage_of, uint32_t stage,
                       uint32_t at) -> void {
    if (stage + 1 == order.size()) {
      std::fill(stage_of.begin() + at, stage_of.end(), stage);
      best = std::min(best, judge.step(stage_of, order));
      return;
    }
    const auto left = static_cast<uint32_t>(order.size()) - stage - 1;
    for (uint32_t end = at + 1; end + left <= n; ++end) {
      stage_of[end - 1] = stage;
      self(self, stage_of, stage + 1, end);
    }
  };
  const auto choose = [&](const auto& self) -> void {
    if (!order.empty()) {
      std::vector<uint32_t> stage_of(n, 0);
      cut(cut, stage_of, 0, 0);
    }
    if (order.size() == std::min(devices, n)) return;
    for (uint32_t device = 0; device < devices; ++device) {
      if (used[device]) continue;
      used[device] = true;
      order.push_back(device);
      self(self);
      order.pop_back();
      used[device] = false;
    }
  };
  choose(choose);
  return best;
}

// The least over all ways to give each position to one of the devices: rings, and pieces anywhere.
double best_of_all(const Judge& judge, uint32_t devices) {
  double best = std::numeric_limits<double>::infinity();
  std::vector<uint32_t> device_of(judge.positions(), 0);
  for (;;) {
    // Stages in the order of their first positions.
    std::vector<uint32_t> order, stage_of;
    for (const uint32_t device : device_of) {
      const auto at = std::find(order.begin(), order.end(), device);
      stage_of.push_back(static_cast<uint32_t>(at - order.begin()));
      if (at == order.end()) order.push_back(device);
    }
    best = std::min(best, judge.step(stage_of, order));
    size_t i = 0;
    while (i < device_of.size() && ++device_of[i] == devices) device_of[i++] = 0;
    if (i == device_of.size()) return best;
  }
}

struct Instance {
  dag::Graph graph;
  PlanRequest request;
};
// Links from such that nobody crosses to such that everybody does.
ClusterView any_cluster(Rng& rng, uint32_t count) {
  ClusterView cluster = test::random_cluster(rng, count);
  const double scale = std::pow(10, 4 * rng.uniform());
  for (uint32_t i = 0; i < count; ++i) {
    const DeviceView& device = cluster.devices()[i];
    cluster.set_lines(i, device.uplink * scale, device.downlink * scale);
    for (uint32_t k = 0; k < count; ++k) {
      const LinkView link = cluster.path(i, k);
      cluster.set_link(i, k, {link.bytes_per_second * scale, Duration(link.latency.count() / 100)});
    }
  }
  return cluster;
}

Instance instance(uint64_t seed, uint32_t devices, uint32_t layers) {
  Rng rng(seed, 31);
  Instance made{rng.below(3) == 0 ? test::training_graph("transformer", seed) : test::chain(seed, layers),
                {}};
  made.request = {.graph = nullptr,
                  .microbatches = static_cast<uint32_t>(1 + rng.below(8)),
                  .optimizer_slots = static_cast<uint32_t>(rng.below(3)),
                  .equal_bits = EqualBits::Ignore,
                  .cluster = any_cluster(rng, devices)};
  return made;
}

TEST(Exhaustive, AutoIsNearTheBestOfAllContiguousCuts) {
  double worst = 0;
  uint64_t stages = 0;
  for (uint64_t seed = 1; seed <= seeds(6); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Instance made = instance(seed, 4, 8);
    made.request.graph = &made.graph;
    const Judge judge(made.request, 9);
    const auto plan = make_plan(made.request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    const double best = best_contiguous(judge, 4), ratio = seconds(plan->predicted_step) / best;
    worst = std::max(worst, ratio);
    stages += plan->stages.size();
    EXPECT_LE(ratio, kEnough) << plan->explanation.front();
  }
  std::printf("worst ratio to the best contiguous plan: %.4f (%.1f stages)\n", worst,
              static_cast<double>(stages) / static_cast<double>(seeds(6)));
}

TEST(Exhaustive, AutoIsNearTheBestOfAllAssignments) {
  double worst = 0;
  uint64_t stages = 0;
  for (uint64_t seed = 1; seed <= seeds(4); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Instance made = instance(seed, 3, 6);
    made.request.graph = &made.graph;
    const Judge judge(made.request, 7);
    const auto plan = make_plan(made.request);
    ASSERT_TRUE(plan.has_value()) << plan.error().message;
    const double best = best_of_all(judge, 3), ratio = seconds(plan->predicted_step) / best;
    worst = std::max(worst, ratio);
    stages += plan->stages.size();
    EXPECT_LE(ratio, kEnough) << plan->explanation.front();
  }
  std::printf("worst ratio to the best of all assignments: %.4f (%.1f stages)\n", worst,
              static_cast<double>(stages) / static_cast<double>(seeds(4)));
}

}  // namespace
}  // namespace weft::plan
