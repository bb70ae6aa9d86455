#include "plan/serving_search.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace weft::plan {
namespace {

constexpr double kEndlessSeconds = std::numeric_limits<double>::infinity();
constexpr double kBetter = 1 - 1e-9;     // less is a rounding error
constexpr double kEffortOfOrders = 1e8;  // steps of RingProblem::cut to try every order with
constexpr double kEffort = 5e8;          // of all together
constexpr size_t kAllOrdersOf = 6;       // devices: of so many every order is tried, whatever it takes
constexpr size_t kOfEach = 96;           // devices looked at: the fastest, and the largest
constexpr size_t kEntries = 8;           // from which a ring of neighbours is begun
constexpr uint32_t kInVain = 2;          // more stages were slower so often: no more are tried

class RingSearch {
 public:
  RingSearch(const RingProblem& problem, const ServingRequest& request, std::span<const uint32_t> devices,
             uint64_t positions)
      : problem_(problem), cluster_(request.cluster), asked_(request.stages), positions_(positions) {
    rank(devices);
  }

  std::optional<FoundRing> run() {
    const auto most = static_cast<uint32_t>(std::min<size_t>(problem_.stages_max(), by_speed_.size()));
    if (asked_) {
      if (*asked_ <= most) look_at(*asked_);
      return std::move(best_);
    }
    uint32_t in_vain = 0;
    for (uint32_t stages = least_stages(); stages <= most;) {
      const bool is_better = look_at(stages);
      if (best_ && !is_better && ++in_vain >= kInVain && by_speed_.size() > kAllOrdersOf) break;
      if (is_better) in_vain = 0;
      stages += best_ ? 1 : std::max(1u, stages / 4);
    }
    return std::move(best_);
  }

 private:
  // Those that are looked at.
  void rank(std::span<const uint32_t> devices) {
    std::vector<uint32_t> fast(devices.begin(), devices.end()), large = fast;
    std::stable_sort(fast.begin(), fast.end(),
                     [&](uint32_t a, uint32_t b) { return problem_.of_all(a) < problem_.of_all(b); });
    std::stable_sort(large.begin(), large.end(), [&](uint32_t a, uint32_t b) {
      return cluster_.devices()[a].memory > cluster_.devices()[b].memory;
    });
    std::vector<bool> is_in(cluster_.devices().size(), false);
    for (const auto* some : {&fast, &large})
      for (size_t i = 0; i < std::min(kOfEach, some->size()); ++i) is_in[(*some)[i]] = true;
    for (const uint32_t device : fast)
      if (is_in[device]) by_speed_.push_back(device);
    for (const uint32_t device : large)
      if (is_in[device]) by_memory_.push_back(device);
  }

  // Of fewer the memory together is too small.
  uint32_t least_stages() const {
    const RingLoad whole = problem_.whole();
    const double needed = static_cast<double>(whole.weights) +
                          static_cast<double>(whole.cache) * static_cast<double>(positions_);
    double there = 0;
    uint32_t stages = 0;
    while (stages < by_memory_.size() && there < needed)
      there += static_cast<double>(cluster_.devices()[by_memory_[stages++]].memory.value);
    return there < needed ? std::numeric_limits<uint32_t>::max() : std::max(1u, stages);
  }

  // Whether a ring of so many stages is better than what is known.
  bool look_at(uint32_t stages) {
    const double before = best_ ? best_->cuts.cost : kEndlessSeconds;
    double orders = 1;
    for (uint32_t i = 0; i < stages; ++i) orders *= static_cast<double>(by_speed_.size() - i);
    if (by_speed_.size() <= kAllOrdersOf || orders * problem_.effort(stages) <= kEffortOfOrders) {
      std::vector<uint32_t> order;
      try_all(order, stages);
    } else {
      climb(stages);
    }
    return best_ && best_->cuts.cost < before * kBetter;
  }

  void try_all(std::vector<uint32_t>& order, uint32_t stages) {
    if (order.size() == stages) return (void)consider(order);
    for (const uint32_t device : by_speed_) {
      if (contains(order, device)) continue;
      order.push_back(device);
      try_all(order, stages);
      order.pop_back();
    }
  }

  // From several beginnings, one device exchanged or two turned round at a time.
  void climb(uint32_t stages) {
    for (std::vector<uint32_t> order : beginnings(stages)) {
      double cost = consider(order);
      while (cost < kEndlessSeconds && effort_ < kEffort && improve(order, cost)) {
      }
    }
  }
  bool improve(std::vector<uint32_t>& order, double& cost) {
    const double before = cost;
    for (size_t i = 0; i < order.size(); ++i) {
      for (const uint32_t device : by_speed_)
        if (!contains(order, device)) {
          std::vector<uint32_t> other = order;
          other[i] = device;
          take_if_better(std::move(other), order, cost);
        }
      for (size_t j = i + 1; j < order.size(); ++j) {
        std::vector<uint32_t> other = order;
        std::reverse(other.begin() + static_cast<std::ptrdiff_t>(i),
                     other.begin() + static_cast<std::ptrdiff_t>(j) + 1);
        take_if_better(std::move(other), order, cost);
      }
    }
    return cost < before;
  }
  void take_if_better(std::vector<uint32_t> other, std::vector<uint32_t>& order, double& cost) {
    if (effort_ >= kEffort) return;
    const double found = consider(other);
    if (found >= cost * kBetter) return;
    cost = found;
    order = std::move(other);
  }

  std::vector<std::vector<uint32_t>> beginnings(uint32_t stages) const {
    std::vector<std::vector<uint32_t>> all;
    for (const auto* by : {&by_speed_, &by_memory_}) {
      all.emplace_back(by->begin(), by->begin() + stages);
      for (size_t i = 0; i < std::min(kEntries, by->size()); ++i) all.push_back(neighbours((*by)[i], stages));
    }
    return all;
  }
  // One after another the one that is nearest to the last, and of those as near the fastest.
  std::vector<uint32_t> neighbours(uint32_t entry, uint32_t stages) const {
    std::vector<uint32_t> order{entry};
    while (order.size() < stages) {
      uint32_t best = entry;
      double nearest = kEndlessSeconds;
      for (const uint32_t device : by_speed_) {
        if (contains(order, device)) continue;
        const LinkView link = cluster_.link(order.back(), device);
        const double cost = seconds(link.latency) + 1 / link.bytes_per_second;
        if (cost >= nearest) continue;
        nearest = cost;
        best = device;
      }
      order.push_back(best);
    }
    return order;
  }

  static bool contains(const std::vector<uint32_t>& order, uint32_t device) {
    return std::find(order.begin(), order.end(), device) != order.end();
  }

  // What it costs.
  double consider(const std::vector<uint32_t>& order) {
    effort_ += problem_.effort(order.size());
    auto cuts = problem_.cut(order, positions_);
    if (!cuts) return kEndlessSeconds;
    const double cost = cuts->cost;
    if (!best_ || cost < best_->cuts.cost * kBetter) best_ = FoundRing{order, std::move(*cuts)};
    return cost;
  }

  const RingProblem& problem_;
  const ClusterView& cluster_;
  const std::optional<uint32_t> asked_;
  const uint64_t positions_;
  std::vector<uint32_t> by_speed_, by_memory_;
  std::optional<FoundRing> best_;
  double effort_ = 0;
};

}  // namespace

std::optional<FoundRing> find_best_ring(const RingProblem& problem, const ServingRequest& request,
                                        std::span<const uint32_t> devices, uint64_t positions) {
  return RingSearch(problem, request, devices, positions).run();
}

}  // namespace weft::plan
