// Rings that serve, beside every ring there is where all of them can be looked at.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/rng.h"
#include "tests/plan/serving_example.h"

namespace weft::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

Example random_example(uint64_t seed, bool is_tight) {
  Rng rng(seed, 17);
  const auto between = [&](uint64_t low, uint64_t high) { return low + rng.below(high - low + 1); };
  Example example;
  ServingRequest& request = example.request;
  request.context = between(4, 40);
  request.sequences_max = static_cast<uint32_t>(between(1, 6));
  request.rows_max = static_cast<uint32_t>(between(1, 8));
  const auto parts = static_cast<uint32_t>(between(1, 7)), devices = static_cast<uint32_t>(between(1, 4));
  for (uint32_t w = 0; w < parts + 2; ++w)
    request.weight_bytes.push_back(static_cast<int64_t>(between(0, 4000)));
  if (between(0, 1) == 1) request.weights_everywhere = {parts + 1};
  for (uint32_t p = 0; p < parts; ++p) {
    ServedPart part{
        .cache_bytes = p % 2 == 1 ? static_cast<int64_t>(between(1, 30)) : 0,
        .row_bytes = static_cast<int64_t>(between(0, 1) == 0 ? between(1, 60) : between(1, 100'000)),
        .work_bytes = static_cast<int64_t>(between(0, 500)),
        .weights = {p}};
    if (p == 0 || p + 1 == parts || between(0, 3) == 0) part.weights.push_back(parts);
    request.parts.push_back(part);
  }
  std::vector<DeviceView> views(devices);
  for (uint32_t d = 0; d < devices; ++d) {
    views[d].name = "d" + std::to_string(d);
    views[d].memory = {static_cast<int64_t>(between(2000, is_tight ? 12'000 : 60'000))};
    views[d].site = d;
    if (between(0, 3) == 0) views[d].host_memory = {static_cast<int64_t>(between(1, 60'000))};
    if (between(0, 2) == 0) views[d].uplink = 1e6 * static_cast<double>(between(1, 50));
    std::vector<PartSeconds>& own = example.seconds.emplace_back();
    const double speed = static_cast<double>(between(1, 20));
    for (uint32_t p = 0; p < parts; ++p)
      own.push_back(
          {1e-3 * static_cast<double>(between(1, 30)) / speed, 1e-4 * static_cast<double>(between(0, 9))});
  }
  request.cluster = ClusterView(std::move(views));
  for (uint32_t a = 0; a < devices; ++a)
    for (uint32_t b = 0; b < devices; ++b)
      request.cluster.set_between(a, b,
                                  {.bytes_per_second = 1e6 * static_cast<double>(between(1, 100)),
                                   .latency = std::chrono::microseconds(between(0, 20'000))});
  request.objective = between(0, 2) == 0 ? ServeObjective::Throughput : ServeObjective::Latency;
  if (between(0, 4) == 0) request.stages = static_cast<uint32_t>(between(1, devices));
  if (between(0, 2) == 0)
    request.draft = DraftLoad{.weight_bytes = static_cast<int64_t>(between(0, 2000)),
                              .work_bytes = static_cast<int64_t>(between(0, 200)),
                              .cache_bytes = static_cast<int64_t>(between(0, 10))};
  return example;
}

// Its own arithmetic, from the header alone.
class EveryRing {
 public:
  explicit EveryRing(Example& example) : example_(example), request_(example.asked()) {}

  // With rows kept at all of them, or where none has room for that at none.
  double best(uint64_t positions) {
    for (const bool keeps : {true, false}) {
      keeps_ = keeps;
      positions_ = positions;
      best_ = kNever;
      std::vector<uint32_t> order;
      extend(order);
      if (best_ < kNever) break;
    }
    return best_;
  }
  bool keeps() const { return keeps_; }
  // Of a plan; checks that it is one.
  double judge(const ServingPlan& plan, uint64_t positions) {
    positions_ = positions;
    std::vector<uint32_t> order;
    std::vector<std::vector<uint32_t>> parts;
    for (const ServingStage& stage : plan.stages) {
      order.push_back(stage.device);
      parts.emplace_back();
      for (const PartSpan& span : stage.parts)
        for (uint32_t part = span.begin; part < span.end; ++part) parts.back().push_back(part);
    }
    return cost(order, parts);
  }

 private:
  void extend(std::vector<uint32_t>& order) {
    const auto devices = static_cast<uint32_t>(request_.cluster.devices().size());
    if (!order.empty() && (!request_.stages || *request_.stages == order.size())) cut_all(order);
    for (uint32_t device = 0; device < devices; ++device) {
      if (std::find(order.begin(), order.end(), device) != order.end()) continue;
      order.push_back(device);
      extend(order);
      order.pop_back();
    }
  }
  // Every way to cut the row in one piece more than there are stages, of which the last is the entry's, too.
  void cut_all(const std::vector<uint32_t>& order) {
    const auto count = static_cast<uint32_t>(request_.parts.size());
    if (order.size() == 1) {
      std::vector<uint32_t> all(count);
      std::iota(all.begin(), all.end(), 0);
      best_ = std::min(best_, cost(order, {all}));
      return;
    }
    for (uint32_t mask = 0; mask < (1u << (count - 1)); ++mask) {
      if (static_cast<size_t>(std::popcount(mask)) != order.size()) continue;
      std::vector<std::vector<uint32_t>> parts(order.size());
      size_t stage = 0;
      for (uint32_t part = 0; part < count; ++part) {
        parts[stage % order.size()].push_back(part);
        if ((mask >> part) & 1) ++stage;
      }
      best_ = std::min(best_, cost(order, parts));
    }
  }

  double cost(const std::vector<uint32_t>& order, const std::vector<std::vector<uint32_t>>& parts) const {
    const bool adds = request_.objective == ServeObjective::Latency;
    const double rows = adds ? 1 : std::min(request_.rows_max, request_.sequences_max);
    double sum = 0, slowest = 0;
    for (size_t s = 0; s < order.size(); ++s) {
      // The first part that comes behind this stage's: of the entry's, behind its first ones.
      uint32_t border = 0;
      for (const uint32_t part : parts[s])
        if (part == border || border == 0) border = part + 1;
      const int64_t row = order.size() > 1 ? request_.parts[border].row_bytes : 0;
      if (!has_room(request_.cluster.devices()[order[s]], bytes(parts[s]) + (s == 0 ? draft_bytes() : 0),
                    row))
        return kNever;
      double stage = 0;
      for (const uint32_t part : parts[s]) {
        const PartSeconds& one = example_.seconds[order[s]][part];
        stage += one.first + (rows - 1) * one.more;
      }
      sum += stage;
      slowest = std::max(slowest, stage);
      if (order.size() == 1) continue;
      const size_t next = (s + 1) % order.size();
      const LinkView link = request_.cluster.link(order[s], order[next]);
      const double carry = rows * (static_cast<double>(row) + kPiece) / link.bytes_per_second;
      sum += carry + weft::seconds(link.latency);
      slowest = std::max(slowest, carry);
    }
    return adds ? sum : slowest;
  }
  bool has_room(const DeviceView& device, int64_t bytes, int64_t row) const {
    const int64_t kept = keeps_ ? row * static_cast<int64_t>(positions_) : 0;
    if (device.host_memory.value == 0) return bytes + kept <= device.memory.value;
    return bytes <= device.memory.value && kept <= device.host_memory.value;
  }
  int64_t bytes(const std::vector<uint32_t>& parts) const {
    std::set<uint32_t> weights(request_.weights_everywhere.begin(), request_.weights_everywhere.end());
    int64_t work = 0, cache = 0;
    for (const uint32_t part : parts) {
      weights.insert(request_.parts[part].weights.begin(), request_.parts[part].weights.end());
      work = std::max(work, request_.parts[part].work_bytes);
      cache += request_.parts[part].cache_bytes;
    }
    int64_t sum = work + cache * static_cast<int64_t>(positions_);
    for (const uint32_t weight : weights) sum += request_.weight_bytes[weight];
    return sum;
  }

  int64_t draft_bytes() const {
    if (!request_.draft) return 0;
    const DraftLoad& draft = *request_.draft;
    return draft.weight_bytes + draft.work_bytes + draft.cache_bytes * static_cast<int64_t>(positions_);
  }

  Example& example_;
  const ServingRequest& request_;
  uint64_t positions_ = 0;
  bool keeps_ = true;
  double best_ = kNever;
};

TEST(ServingPlan, IsTheBestOfAllThereAre) {
  size_t planned = 0, of_several = 0, refused = 0, keeping = 0, forgetting = 0;
  for (uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Example example = random_example(seed, seed % 2 == 0);
    EveryRing all(example);
    const double best = all.best(example.request.context);
    const auto plan = plan_serving(example.asked());
    if (!plan) {
      ++refused;
      EXPECT_EQ(plan.error().code, ErrorCode::Infeasible) << plan.error().message;
      EXPECT_EQ(best, kNever) << plan.error().message;
      continue;
    }
    ++planned;
    const bool is_ring = plan->stages.size() > 1;
    of_several += is_ring;
    keeping += is_ring && all.keeps();
    forgetting += is_ring && !all.keeps();
    EXPECT_EQ(plan->kept_positions_max, is_ring && all.keeps() ? plan->positions_max : 0);
    expect_a_ring(*plan, example.request.parts.size());
    const double own = all.judge(*plan, plan->positions_max);  // all caches full
    EXPECT_GE(own, best * (1 - 1e-9));
    EXPECT_LE(own, best * kMoreSequencesCost * (1 + 1e-9));
    EXPECT_GE(plan->positions_max, example.request.context);
    EXPECT_LE(plan->positions_max, example.request.context * example.request.sequences_max);
    if (example.request.sequences_max == 1) {
      EXPECT_NEAR(own, best, 1e-9 * best);
    }
    if (plan->positions_max < example.request.context * example.request.sequences_max) {
      EXPECT_EQ(all.judge(*plan, plan->positions_max + 1), kNever);  // there is no room for more
    }
  }
  EXPECT_GT(planned, 100u);
  EXPECT_GT(of_several, 40u);
  EXPECT_GT(keeping, 20u);
  EXPECT_GT(forgetting, 10u);
  EXPECT_GT(refused, 20u);
}

TEST(ServingPlan, SaysWhichSequenceWouldFit) {
  size_t shorter = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Example example = random_example(seed, true);
    example.request.stages.reset();
    const auto plan = plan_serving(example.asked());
    if (plan) continue;
    EveryRing all(example);
    uint64_t longest = 0;
    for (uint64_t positions = 1; positions < example.request.context; ++positions)
      if (all.best(positions) < kNever) longest = positions;
    const std::string wanted =
        longest == 0 ? "the model does not fit" : "The largest that fits is " + std::to_string(longest) + ":";
    EXPECT_NE(plan.error().message.find(wanted), std::string::npos) << plan.error().message;
    shorter += longest > 0;
  }
  EXPECT_GT(shorter, 5u);
}

}  // namespace
}  // namespace weft::plan
