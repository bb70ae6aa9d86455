// The default strategy beside every plan there is, where all of them can be looked at.
// WEFT_PLAN_SEEDS=500 looks at as many instances of each kind, of each of which it takes a second or two.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <numeric>

#include "dag/cut.h"
#include "dag/split.h"
#include "plan/pipeline.h"
#include "plan/plan.h"
#include "plan/predict.h"
#include "tests/plan/graphs.h"

namespace weft::plan {
namespace {

constexpr double kEnough = 1.05;  // of the optimum's step
constexpr double kNever = std::numeric_limits<double>::infinity();

// Works out assignments of positions to stages exactly as the planner does, 1F1B.
class Judge {
 public:
  Judge(const PlanRequest& request, uint32_t positions)
      : request_(request),
        model_(make_model(*request.graph, {}, positions)),
        movable_(dag::movable_sums(*request.graph, {})),
        users_(request.graph->users()) {
    for (const DeviceView& device : request.cluster.devices()) seconds_of_.push_back(sure_seconds(device));
    find_values();
  }

  uint32_t positions() const { return model_.positions; }
  // What a position takes in a step on that device at the least.
  double least(uint32_t position, uint32_t device) const {
    return request_.microbatches * seconds_of_[device][position];
  }
  // The same of what a link, or a device's uplink, carries a microbatch.
  double least(int64_t bytes, double bytes_per_second) const {
    return request_.microbatches * static_cast<double>(bytes) / bytes_per_second;
  }
  const ClusterView& cluster() const { return request_.cluster; }

  // Of a value that goes from position to position for sure: who makes it, and who reads it.
  struct Value {
    uint32_t from = 0;
    std::vector<uint32_t> readers;
    int64_t bytes = 0;
  };
  // Those that have no further end than this position.
  const std::vector<Value>& values_up_to(uint32_t position) const { return values_[position]; }

  // By stage its device; every stage has a position. Infinite: the segments wait for each other, or it takes
  // no less than `enough`.
  double step(const std::vector<uint32_t>& stage_of_position, const std::vector<uint32_t>& devices,
              double enough) const {
    std::vector<uint32_t> stage_of_op;
    for (const uint32_t position : model_.position_of_op) stage_of_op.push_back(stage_of_position[position]);
    stage_of_op = dag::move_sums(*request_.graph, movable_, users_,
                                 dag::stages_by_origin(*request_.graph, stage_of_op));
    std::vector<StageDevice> on;
    for (const uint32_t device : devices) on.push_back({request_.cluster.devices()[device].rates, 0});
    const auto pipeline =
        make_pipeline(model_, stage_of_op, on, {request_.microbatches, request_.optimizer_slots, 1});
    if (!pipeline || busiest(*pipeline, devices) >= enough) return kNever;
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
  // By position, without sums that may be made elsewhere.
  std::vector<double> sure_seconds(const DeviceView& device) const {
    std::vector<double> seconds(model_.positions, 0);
    const Model::Class& of = model_.classes.front();
    for (size_t g = 0; g < of.groups.size(); ++g)
      if (!movable_[of.lowered->source_op[of.groups[g].begin].index])
        seconds[of.position_of_group[g]] += seconds_of(of.groups[g], device.rates);
    return seconds;
  }
  void find_values() {
    values_.resize(model_.positions);
    const std::vector<bool> copied = dag::copied_leaves(*request_.graph);
    for (uint32_t v = 0; v < users_.size(); ++v) {
      const uint32_t producer = request_.graph->values()[v].producer.index;
      if (copied[producer] || movable_[producer]) continue;
      Value value{model_.position_of_op[producer], {}, request_.graph->values()[v].spec.bytes().value};
      uint32_t last = value.from;
      for (const dag::OpId reader : users_[v])
        if (!movable_[reader.index]) value.readers.push_back(model_.position_of_op[reader.index]);
      for (const uint32_t reader : value.readers) last = std::max(last, reader);
      if (!value.readers.empty()) values_[last].push_back(std::move(value));
    }
  }
  // What keeps a device or a link busy for the longest: no step is shorter.
  double busiest(const Pipeline& pipeline, const std::vector<uint32_t>& devices) const {
    std::map<std::pair<uint32_t, uint32_t>, double> busy;  // by ends; of a device, twice the same
    for (uint32_t stage = 0; stage < devices.size(); ++stage)
      for (const Segment& segment : pipeline.stages[stage].segments)
        busy[{stage, stage}] += seconds(segment.compute);
    for (const Message& message : pipeline.messages)
      busy[{message.from_stage, message.to_stage}] +=
          static_cast<double>(message.bytes.value) /
          request_.cluster.link(devices[message.from_stage], devices[message.to_stage]).bytes_per_second;
    double most = 0;
    for (const auto& [ends, once] : busy) most = std::max(most, request_.microbatches * once);
    return most;
  }

  const PlanRequest& request_;
  Model model_;
  std::vector<bool> movable_;
  std::vector<std::vector<dag::OpId>> users_;
  std::vector<std::vector<double>> seconds_of_;  // by device, by position
  std::vector<std::vector<Value>> values_;       // by their furthest end
};

// The least step over every way to give the positions to devices: anything, or a device only positions next
// to each other. What a device or a link has so far to do ends a branch.
class Search {
 public:
  Search(const Judge& judge, uint32_t devices, bool contiguous, double known)
      : judge_(judge),
        contiguous_(contiguous),
        best_(known),
        stage_on_(devices, kNone),
        busy_(devices, 0),
        sent_(size_t{devices} * devices, 0) {}

  double run() {
    descend();
    return best_;
  }
  // By position, the device of the best.
  std::string found() const {
    std::string text;
    for (const uint32_t device : found_) text += " " + std::to_string(device);
    return text;
  }

 private:
  static constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

  void descend() {
    const auto position = static_cast<uint32_t>(stage_of_.size());
    if (position == judge_.positions()) {
      const double step = judge_.step(stage_of_, order_, best_);
      if (step < best_) best_ = step, found_ = device_of_;
      return;
    }
    for (uint32_t device = 0; device < stage_on_.size(); ++device) {
      const bool is_new = stage_on_[device] == kNone;
      if (contiguous_ && !is_new && stage_on_[device] != stage_of_.back()) continue;
      const double before = busy_[device];
      busy_[device] += judge_.least(position, device);
      if (busy_[device] < best_) give(device, is_new);
      busy_[device] = before;
    }
  }
  void give(uint32_t device, bool is_new) {
    if (is_new) {
      stage_on_[device] = static_cast<uint32_t>(order_.size());
      order_.push_back(device);
    }
    stage_of_.push_back(stage_on_[device]);
    device_of_.push_back(device);
    const std::vector<int64_t> before = sent_;
    add_values();
    if (links_are_free()) descend();
    sent_ = before;
    device_of_.pop_back();
    stage_of_.pop_back();
    if (!is_new) return;
    order_.pop_back();
    stage_on_[device] = kNone;
  }
  // Each value once to each device that reads it.
  void add_values() {
    for (const Judge::Value& value : judge_.values_up_to(static_cast<uint32_t>(device_of_.size() - 1))) {
      std::vector<bool> has(busy_.size(), false);
      const uint32_t from = device_of_[value.from];
      has[from] = true;
      for (const uint32_t reader : value.readers) {
        const uint32_t to = device_of_[reader];
        if (!has[to]) sent_[from * busy_.size() + to] += value.bytes;
        has[to] = true;
      }
    }
  }
  bool links_are_free() const {
    for (size_t from = 0; from < busy_.size(); ++from) {
      int64_t all = 0;
      for (size_t to = 0; to < busy_.size(); ++to) {
        const int64_t bytes = sent_[from * busy_.size() + to];
        if (bytes == 0) continue;
        all += bytes;
        if (judge_.least(bytes, judge_.cluster().link(from, to).bytes_per_second) >= best_) return false;
      }
      if (judge_.least(all, judge_.cluster().devices()[from].uplink) >= best_) return false;
    }
    return true;
  }

  const Judge& judge_;
  bool contiguous_;
  double best_;
  std::vector<uint32_t> stage_of_;   // by position
  std::vector<uint32_t> order_;      // devices by stage, in the order of their first positions
  std::vector<uint32_t> stage_on_;   // by device
  std::vector<double> busy_;         // likewise
  std::vector<uint32_t> device_of_;  // by position
  std::vector<int64_t> sent_;        // a microbatch, by sender and receiver
  std::vector<uint32_t> found_;
};

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
  const uint64_t kind = rng.below(3);
  Instance made{kind == 0   ? test::training_graph("transformer", seed)
                : kind == 1 ? test::branches(seed, layers)
                            : test::chain(seed, layers),
                {}};
  made.request = {.graph = nullptr,
                  .microbatches = static_cast<uint32_t>(1 + rng.below(8)),
                  .optimizer_slots = static_cast<uint32_t>(rng.below(3)),
                  .equal_bits = EqualBits::Ignore,
                  .cluster = any_cluster(rng, devices)};
  return made;
}

// The default's step over the least there is.
double ratio_to_best(uint64_t seed, uint32_t positions, uint32_t devices, bool contiguous) {
  Instance made = instance(seed, devices, positions - 1);
  made.request.graph = &made.graph;
  const auto plan = make_plan(made.request);
  EXPECT_TRUE(plan.has_value()) << plan.error().message;
  if (!plan) return kNever;
  const Judge judge(made.request, positions);
  const double step = seconds(plan->predicted_step);
  Search search(judge, devices, contiguous, step);
  const double ratio = step / search.run();
  EXPECT_LE(ratio, kEnough) << plan->explanation.front() << "; better are, position by position, devices"
                            << search.found();
  return ratio;
}

struct Space {
  const char* name;
  uint32_t positions, devices;
  bool contiguous;
  uint64_t usual;  // seeds
};
std::ostream& operator<<(std::ostream& out, const Space& space) { return out << space.name; }
class Exhaustive : public testing::TestWithParam<Space> {};

TEST_P(Exhaustive, AutoIsNearTheBest) {
  const Space& space = GetParam();
  const test::Seeds seeds = test::seeds(space.usual);
  double worst = 0, sum = 0;
  uint64_t worst_seed = 0;
  for (uint64_t seed = seeds.first; seed <= seeds.last; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const double ratio = ratio_to_best(seed, space.positions, space.devices, space.contiguous);
    sum += ratio;
    if (ratio > worst) worst = ratio, worst_seed = seed;
  }
  std::printf("%s: %.4f of the optimum's step on average, %.4f at worst (seed %llu)\n", space.name,
              sum / static_cast<double>(seeds.last - seeds.first + 1), worst,
              static_cast<unsigned long long>(worst_seed));
}
INSTANTIATE_TEST_SUITE_P(Plans, Exhaustive,
                         testing::Values(Space{"ContiguousCuts", 10, 5, true, 4},
                                         Space{"AllAssignments", 7, 4, false, 4}),
                         [](const auto& each) { return std::string(each.param.name); });

}  // namespace
}  // namespace weft::plan
