#include "plan/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <string>

namespace weft::plan {
namespace {

constexpr size_t kOrdersKept = 4;
constexpr int kRowsMax = 20'000;  // of an enumeration: then the best so far have to do
constexpr size_t kDevicesEnumerated = 8;
constexpr size_t kPlacementsMax = 8;
constexpr double kNoTime = std::numeric_limits<double>::infinity();

// Devices that can stand for each other: equal in all that a plan can tell.
bool interchangeable(const DeviceView& one, const DeviceView& other) {
  return one.rates == other.rates && one.memory == other.memory && one.host_memory == other.host_memory &&
         one.region == other.region && one.owner == other.owner && one.fingerprint == other.fingerprint &&
         one.device_class == other.device_class;
}

struct Ranked {
  double score = kNoTime;
  std::vector<uint32_t> order;
};
void keep_best(std::vector<Ranked>& best, Ranked candidate) {
  const auto at = std::upper_bound(best.begin(), best.end(), candidate,
                                   [](const Ranked& a, const Ranked& b) { return a.score < b.score; });
  best.insert(at, std::move(candidate));
  if (best.size() > kOrdersKept) best.pop_back();
}

// Seconds of the partition with the least bottleneck; when nothing fits in memory, as if memory were no
// matter, so that the order is still compared with others.
double score_of(const Scope& scope, bool as_ring, const std::vector<uint32_t>& order) {
  const PartitionProblem problem =
      as_ring ? ring_problem(*scope.request, *scope.coarse, order, scope.coarse->ring->tails.front())
              : partition_problem(*scope.request, *scope.coarse, order);
  if (const auto partition = least_bottleneck(problem))
    return estimate(partition->cost, scope.request->microbatches);
  PartitionProblem unbounded = problem;
  for (auto& stage : unbounded.stages) stage.memory = std::numeric_limits<int64_t>::max();
  const auto partition = least_bottleneck(unbounded);
  return partition ? 1e6 + estimate(partition->cost, scope.request->microbatches) : kNoTime;
}

// Depth first over orders. The rows of the dynamic programme belong to the branch, so that orders with the
// same beginning share them; a branch ends when even an even share of what is left cannot beat what is known.
class Enumeration {
 public:
  Enumeration(const Scope& scope, bool as_ring, bool memory_matters)
      : scope_(scope),
        ring_(as_ring ? &*scope.coarse->ring : nullptr),
        memory_matters_(memory_matters),
        cluster_(scope.request->cluster),
        positions_(as_ring ? ring_->tails.front() : scope.coarse->positions),
        used_(scope.devices.size(), false),
        rows_(scope.stages) {
    for (const uint32_t device : scope.devices) {
      before_.push_back(
          seconds_before(*scope.coarse, cluster_.devices()[device], scope.request->microbatches > 1));
      if (fastest_.empty() || before_.back()->back() < fastest_.back()) fastest_ = *before_.back();
    }
    class_.resize(scope.devices.size());
    const std::vector<uint32_t> in_links = cluster_.equal_in_links();
    for (size_t i = 0; i < class_.size(); ++i) {
      class_[i] = i;
      const uint32_t device = scope.devices[i];
      for (size_t k = 0; k < i && class_[i] == i; ++k)
        if (class_[k] == k && in_links[scope.devices[k]] == in_links[device] &&
            interchangeable(cluster_.devices()[scope.devices[k]], cluster_.devices()[device]))
          class_[i] = k;
    }
  }

  std::vector<std::vector<uint32_t>> run() {
    descend(0);
    std::vector<std::vector<uint32_t>> orders;
    orders.reserve(best_.size());
    for (Ranked& ranked : best_) orders.push_back(std::move(ranked.order));
    return orders;
  }

 private:
  // By end position: the least bottleneck and, with that, the sum.
  using Row = std::vector<std::pair<double, double>>;

  void descend(uint32_t stage) {
    if (stage == scope_.stages) {
      auto [bottleneck, sum] = rows_[stage - 1][positions_];
      if (bottleneck == kNoTime) return;
      if (ring_) {
        const StageCost closing = closing_cost();
        bottleneck = std::max(bottleneck, closing.bottleneck);
        sum += closing.sum;
      }
      keep_best(best_, {estimate({bottleneck, sum}, scope_.request->microbatches), order_});
      return;
    }
    std::vector<bool> tried(used_.size(), false);
    for (const size_t i : nearest_first()) {
      if (used_[i] || tried[class_[i]]) continue;
      if (rows_left_-- <= 0) return;
      tried[class_[i]] = true;
      used_[i] = true;
      order_.push_back(scope_.devices[i]);
      fill_row(stage, i);
      if (best_.size() < kOrdersKept || lower_bound(stage) < best_.back().score) descend(stage + 1);
      order_.pop_back();
      used_[i] = false;
    }
  }

  // By the bandwidth from the last device of the branch, so that good orders come early and cut off the
  // others.
  std::vector<size_t> nearest_first() const {
    std::vector<size_t> candidates(used_.size());
    std::iota(candidates.begin(), candidates.end(), size_t{0});
    if (order_.empty()) return candidates;
    const auto bandwidth = [&](size_t i) {
      const uint32_t to = scope_.devices[i], from = order_.back();
      return to == from ? 0
                        : std::min(cluster_.link(from, to).bytes_per_second,
                                   cluster_.link(to, from).bytes_per_second);
    };
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](size_t a, size_t b) { return bandwidth(a) > bandwidth(b); });
    return candidates;
  }

  PartitionProblem empty_problem() const {
    PartitionProblem problem;
    problem.model = scope_.coarse;
    problem.ring = ring_;
    problem.tail = positions_;
    problem.beside = scope_.request->beside();
    problem.gradient_sums = scope_.request->gradient_sums;
    // The first, the one that is looked at, and another where there are more than two.
    problem.stages.resize(scope_.stages > 2 ? 3 : 2);
    problem.stages[0].receive.bytes_per_second = problem.stages[0].give_back.bytes_per_second = kNoTime;
    return problem;
  }
  // Of the link between the last device and the first, which nothing is known of before the last is chosen.
  StageCost closing_cost() const {
    PartitionProblem problem = empty_problem();
    problem.stages[0].receive = cluster_.link(order_.back(), order_.front());
    problem.stages[0].give_back = cluster_.link(order_.front(), order_.back());
    const auto [received, returned] = problem.transfer(0, 0, positions_);
    return {std::max(received, returned), received + returned};
  }

  void fill_row(uint32_t stage, size_t device) {
    Row& row = rows_[stage];
    row.assign(positions_ + 1, {kNoTime, kNoTime});
    PartitionProblem problem = empty_problem();
    auto& at = problem.stages[stage == 0 ? 0 : 1];
    at.seconds_before = before_[device];
    at.memory = memory_matters_ ? cluster_.devices()[scope_.devices[device]].memory.value
                                : std::numeric_limits<int64_t>::max();
    at.holds_copy = cluster_.devices()[scope_.devices[device]].host_memory.value == 0;
    at.in_flight = 1;
    at.uplink = cluster_.devices()[scope_.devices[device]].uplink;
    at.downlink = cluster_.devices()[scope_.devices[device]].downlink;
    if (stage > 0) {
      at.receive = cluster_.link(order_[stage - 1], order_[stage]);
      at.give_back = cluster_.link(order_[stage], order_[stage - 1]);
    }
    const uint32_t own = stage == 0 ? 0 : 1, after = scope_.stages - 1 - stage;
    for (uint32_t end = problem.first_end(stage, stage); end + after <= positions_; ++end)
      for (uint32_t begin = stage == 0 ? 0 : end - 1;; --begin) {
        if (problem.compute(own, begin, end) > row[end].first) break;
        const std::pair<double, double> before = stage == 0 ? std::pair(0.0, 0.0) : rows_[stage - 1][begin];
        if (before.first < kNoTime && problem.fits(begin, end, own)) {
          const StageCost cost = problem.cost(own, begin, end);
          row[end] = std::min(row[end], {std::max(before.first, cost.bottleneck), before.second + cost.sum});
        }
        if (begin <= stage) break;
      }
  }

  double lower_bound(uint32_t stage) const {
    const uint32_t left = scope_.stages - 1 - stage;
    double bottleneck = kNoTime;
    for (uint32_t end = 0; end <= positions_; ++end) {
      const double rest = fastest_[positions_] - fastest_[end];
      if (left == 0 && end < positions_) continue;
      bottleneck = std::min(bottleneck, std::max(rows_[stage][end].first, left == 0 ? 0 : rest / left));
    }
    return estimate({bottleneck, fastest_.back()}, scope_.request->microbatches);
  }

  const Scope& scope_;
  const Ring* ring_;
  bool memory_matters_;
  const ClusterView& cluster_;
  uint32_t positions_;
  int rows_left_ = kRowsMax;
  std::vector<bool> used_;
  std::vector<Row> rows_;                                           // by stage of the branch
  std::vector<std::shared_ptr<const std::vector<double>>> before_;  // by device of the scope
  std::vector<double> fastest_;                                     // the least of them as a whole
  std::vector<size_t> class_;                                       // the first that is interchangeable
  std::vector<uint32_t> order_;
  std::vector<Ranked> best_;
};

using Groups = std::vector<std::vector<uint32_t>>;

double speed_of(const Scope& scope, uint32_t device) {
  const Rates& rates = scope.request->cluster.devices()[device].rates;
  return std::max(rates.matmul_flops_per_second, rates.convolution_flops_per_second);
}

// The scope's devices by region, the fastest of each first. The largest regions first: a pipeline that fits
// in one needs no slow link.
Groups groups_of(const Scope& scope) {
  std::map<std::string, std::vector<uint32_t>> regions;
  for (const uint32_t device : scope.devices)
    regions[scope.request->cluster.devices()[device].region].push_back(device);
  Groups groups;
  for (auto& [name, devices] : regions) {
    std::stable_sort(devices.begin(), devices.end(),
                     [&](uint32_t a, uint32_t b) { return speed_of(scope, a) > speed_of(scope, b); });
    groups.push_back(devices);
  }
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return groups;
}

// From one of them on, the next by the bandwidth to it.
Groups nearest_row(const Groups& groups, size_t start, const ClusterView& cluster) {
  std::vector<bool> used(groups.size(), false);
  Groups row;
  for (size_t at = start; at < groups.size();) {
    used[at] = true;
    row.push_back(groups[at]);
    size_t next = groups.size();
    double bandwidth = -1;
    for (size_t g = 0; g < groups.size(); ++g) {
      if (used[g]) continue;
      const LinkView there = cluster.link(groups[at].front(), groups[g].front());
      const LinkView back = cluster.link(groups[g].front(), groups[at].front());
      const double worst = std::min(there.bytes_per_second, back.bytes_per_second);
      if (worst > bandwidth) bandwidth = worst, next = g;
    }
    at = next;
  }
  return row;
}

std::vector<uint32_t> first_of(const Groups& row, uint32_t stages) {
  std::vector<uint32_t> order;
  for (const auto& group : row)
    for (const uint32_t device : group)
      if (order.size() < stages) order.push_back(device);
  return order;
}
// Of each group so many.
std::vector<uint32_t> some_of_each(const Groups& row, const std::vector<size_t>& counts) {
  std::vector<uint32_t> order;
  for (size_t g = 0; g < row.size(); ++g)
    order.insert(order.end(), row[g].begin(), row[g].begin() + static_cast<ptrdiff_t>(counts[g]));
  return order;
}

// One of each group, and what is left over of the fastest groups, or of all in turns. None: there are more
// groups than stages.
std::vector<std::vector<uint32_t>> orders_of_all(const Scope& scope, const Groups& row) {
  if (row.size() > scope.stages) return {};
  std::vector<size_t> fastest(row.size());
  std::iota(fastest.begin(), fastest.end(), size_t{0});
  std::stable_sort(fastest.begin(), fastest.end(), [&](size_t a, size_t b) {
    return speed_of(scope, row[a].front()) > speed_of(scope, row[b].front());
  });
  std::vector<std::vector<uint32_t>> orders;
  for (const bool in_turns : {false, true}) {
    std::vector<size_t> counts(row.size(), 1);
    for (size_t left = scope.stages - row.size(), i = 0; left > 0; ++i) {
      const size_t g = fastest[i % fastest.size()];
      const size_t more = std::min({left, row[g].size() - counts[g], in_turns ? size_t{1} : left});
      counts[g] += more;
      left -= more;
    }
    orders.push_back(some_of_each(row, counts));
  }
  return orders;
}

// Regions one after the other, each row from another one on.
std::vector<std::vector<uint32_t>> greedy_orders(const Scope& scope, bool as_ring) {
  const Groups groups = groups_of(scope);
  std::vector<Ranked> best;
  for (size_t start = 0; start < std::min(groups.size(), kPlacementsMax); ++start) {
    const Groups row = nearest_row(groups, start, scope.request->cluster);
    if (!scope.request->every_site) {
      std::vector<uint32_t> order = first_of(row, scope.stages);
      if (order.size() == scope.stages) keep_best(best, {score_of(scope, as_ring, order), order});
      continue;
    }
    for (std::vector<uint32_t>& order : orders_of_all(scope, row))
      keep_best(best, {score_of(scope, as_ring, order), std::move(order)});
  }
  std::vector<std::vector<uint32_t>> orders;
  orders.reserve(best.size());
  for (Ranked& ranked : best) orders.push_back(std::move(ranked.order));
  return orders;
}

}  // namespace

PartitionProblem partition_problem(const PlanRequest& request, const Model& model,
                                   const std::vector<uint32_t>& order) {
  PartitionProblem problem;
  problem.model = &model;
  problem.tail = model.positions;
  problem.beside = request.beside();
  problem.gradient_sums = request.gradient_sums;
  problem.repeats = true;
  problem.ratio = expected_ratio(request.compression);
  const ClusterView& cluster = request.cluster;
  for (size_t s = 0; s < order.size(); ++s) {
    const DeviceView& device = cluster.devices()[order[s]];
    PartitionProblem::Stage stage;
    for (size_t k = 0; k < s && !stage.seconds_before; ++k)
      if (cluster.devices()[order[k]].rates == device.rates &&
          cluster.devices()[order[k]].device_class == device.device_class)
        stage.seconds_before = problem.stages[k].seconds_before;
    if (!stage.seconds_before) stage.seconds_before = seconds_before(model, device, request.microbatches > 1);
    stage.memory = device.memory.value;
    stage.holds_copy = device.host_memory.value == 0;
    stage.in_flight =
        std::min(request.microbatches, static_cast<uint32_t>(order.size() - s)) + request.evaluates;
    stage.uplink = device.uplink;
    stage.downlink = device.downlink;
    if (s > 0) {
      stage.receive = cluster.link(order[s - 1], order[s]);
      stage.give_back = cluster.link(order[s], order[s - 1]);
    }
    problem.stages.push_back(std::move(stage));
  }
  return problem;
}

PartitionProblem ring_problem(const PlanRequest& request, const Model& model,
                              const std::vector<uint32_t>& order, uint32_t tail) {
  PartitionProblem problem = partition_problem(request, model, order);
  problem.ring = &*model.ring;
  problem.tail = tail;
  problem.stages.front().receive = request.cluster.link(order.back(), order.front());
  problem.stages.front().give_back = request.cluster.link(order.front(), order.back());
  // A microbatch comes by the first stage once more.
  for (auto& stage : problem.stages)
    stage.in_flight = std::min(request.microbatches + request.evaluates, stage.in_flight + 1);
  return problem;
}

PartitionProblem problem_of(const PlanRequest& request, const Model& model, const Proposal& proposal) {
  return proposal.is_ring(model) ? ring_problem(request, model, proposal.devices, proposal.ends.back())
                                 : partition_problem(request, model, proposal.devices);
}

double estimate(const StageCost& cost, uint32_t microbatches) {
  return cost.sum + (microbatches - 1.0) * cost.bottleneck;
}

std::vector<std::vector<uint32_t>> device_orders(const Scope& scope, bool as_ring) {
  if (as_ring && (!scope.coarse->ring || scope.stages < 2)) return {};
  if (scope.devices.size() < scope.stages || scope.coarse->positions < scope.stages) return {};
  auto orders = greedy_orders(scope, as_ring);
  if (scope.devices.size() > kDevicesEnumerated) return orders;
  auto best = Enumeration(scope, as_ring, true).run();
  if (best.empty()) best = Enumeration(scope, as_ring, false).run();  // the need was overestimated, perhaps
  for (auto& order : orders)
    if (best.size() < kOrdersKept + 1 && std::find(best.begin(), best.end(), order) == best.end())
      best.push_back(std::move(order));
  return best;
}

}  // namespace weft::plan
