// OP-Fence, as the FusionLLM paper (arXiv 2410.12707) describes it: devices are grouped by bandwidth with
// Louvain's method, groups are put in a row, each gets consecutive ops by its share of the computing power,
// and within a group each device by its own. All devices work.
//
// Where the paper is silent: groups stand in the order that makes the sum of the times to cross from one to
// the next least (all orders up to seven groups, beyond it the nearest next, from every start); the time is
// that of the best link between the two, whose ends then stand next to each other. A fence, the cut between
// two groups, may lie up to a quarter of the smaller neighbouring stage's share from where the shares put it,
// and lies where the fewest bytes cross. Memory moves borders as it demands.
#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "plan/communities.h"
#include "plan/row.h"
#include "plan/strategy.h"

namespace weft::plan {
namespace {

constexpr size_t kGroupsEnumerated = 7;
constexpr size_t kStartsMax = 64;  // of more groups the first ones
constexpr double kFencePlay = 0.25;

class Fences {
 public:
  explicit Fences(const Scope& scope) : scope_(scope), cluster_(scope.request->cluster) {
    for (const uint32_t device : scope.devices) {
      if (device >= speed_.size()) speed_.resize(device + 1, 0);
      const auto before =
          seconds_before(*scope.model, cluster_.devices()[device], scope.request->microbatches > 1);
      speed_[device] = 1 / std::max(1e-12, before->back());
    }
  }

  std::vector<Proposal> run() {
    std::vector<std::vector<uint32_t>> groups = communities(cluster_, chosen_devices());
    order_groups(groups);
    std::vector<uint32_t> order;
    std::vector<size_t> group_ends;
    for (const auto& group : groups) {
      order.insert(order.end(), group.begin(), group.end());
      group_ends.push_back(order.size());
    }
    auto proposal = deal_out(
        scope_, order, [&](const PartitionProblem& problem) { return deal(problem, order, group_ends); });
    if (!proposal) return {};
    return {std::move(*proposal)};
  }

 private:
  // The fastest where fewer stages than devices are asked for.
  std::vector<uint32_t> chosen_devices() const {
    std::vector<uint32_t> devices = scope_.devices;
    std::stable_sort(devices.begin(), devices.end(),
                     [&](uint32_t a, uint32_t b) { return speed_[a] > speed_[b]; });
    devices.resize(scope_.stages);
    std::sort(devices.begin(), devices.end());
    return devices;
  }

  struct Crossing {
    double seconds_per_byte = std::numeric_limits<double>::infinity();
    uint32_t from = 0, to = 0;
  };
  // Those of a group that its best link to another may begin at: of each site the one with the best lines.
  std::vector<uint32_t> gates(const std::vector<uint32_t>& group) const {
    if (cluster_.has_pairs()) return group;
    std::map<uint32_t, uint32_t> best;  // by site
    const auto seconds = [&](uint32_t device) {
      return 1 / cluster_.devices()[device].uplink + 1 / cluster_.devices()[device].downlink;
    };
    for (const uint32_t device : group) {
      const auto [at, fresh] = best.try_emplace(cluster_.devices()[device].site, device);
      if (!fresh && seconds(device) < seconds(at->second)) at->second = device;
    }
    std::vector<uint32_t> gates;
    gates.reserve(best.size());
    for (const auto& [site, device] : best) gates.push_back(device);
    std::sort(gates.begin(), gates.end());
    return gates;
  }
  Crossing crossing(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) const {
    Crossing best;
    for (const uint32_t from : a)
      for (const uint32_t to : b) {
        const double seconds =
            1 / cluster_.link(from, to).bytes_per_second + 1 / cluster_.link(to, from).bytes_per_second;
        if (seconds < best.seconds_per_byte) best = {seconds, from, to};
      }
    return best;
  }

  // And the devices that face a neighbouring group to its side.
  void order_groups(std::vector<std::vector<uint32_t>>& groups) const {
    const size_t count = groups.size();
    std::vector<std::vector<Crossing>> crossings(count, std::vector<Crossing>(count));
    std::vector<std::vector<uint32_t>> gates_of;
    gates_of.reserve(count);
    for (const auto& group : groups) gates_of.push_back(gates(group));
    for (size_t a = 0; a < count; ++a)
      for (size_t b = 0; b < count; ++b)
        if (a != b) crossings[a][b] = crossing(gates_of[a], gates_of[b]);
    const std::vector<size_t> row = count <= kGroupsEnumerated ? best_row(crossings) : nearest_row(crossings);
    std::vector<std::vector<uint32_t>> ordered;
    for (size_t i = 0; i < count; ++i) {
      std::vector<uint32_t> group = groups[row[i]];
      const auto put = [&](uint32_t device, bool first) {
        const auto at = std::find(group.begin(), group.end(), device);
        if (first)
          std::rotate(group.begin(), at, at + 1);
        else
          std::rotate(at, at + 1, group.end());
      };
      if (i > 0) put(crossings[row[i - 1]][row[i]].to, /*first=*/true);
      if (i + 1 < count) put(crossings[row[i]][row[i + 1]].from, /*first=*/false);
      ordered.push_back(std::move(group));
    }
    groups = std::move(ordered);
  }

  static double length(const std::vector<size_t>& row, const std::vector<std::vector<Crossing>>& crossings) {
    double sum = 0;
    for (size_t i = 1; i < row.size(); ++i) sum += crossings[row[i - 1]][row[i]].seconds_per_byte;
    return sum;
  }
  static std::vector<size_t> best_row(const std::vector<std::vector<Crossing>>& crossings) {
    std::vector<size_t> row(crossings.size());
    std::iota(row.begin(), row.end(), size_t{0});
    std::vector<size_t> best = row;
    while (std::next_permutation(row.begin(), row.end()))
      if (length(row, crossings) < length(best, crossings)) best = row;
    return best;
  }
  static std::vector<size_t> nearest_row(const std::vector<std::vector<Crossing>>& crossings) {
    std::vector<size_t> best;
    for (size_t start = 0; start < std::min(crossings.size(), kStartsMax); ++start) {
      std::vector<size_t> row{start};
      std::vector<bool> used(crossings.size(), false);
      used[start] = true;
      while (row.size() < crossings.size()) {
        size_t next = crossings.size();
        for (size_t g = 0; g < crossings.size(); ++g)
          if (!used[g] && (next == crossings.size() || crossings[row.back()][g].seconds_per_byte <
                                                           crossings[row.back()][next].seconds_per_byte))
            next = g;
        used[next] = true;
        row.push_back(next);
      }
      if (best.empty() || length(row, crossings) < length(best, crossings)) best = row;
    }
    return best;
  }

  std::vector<uint32_t> deal(const PartitionProblem& problem, const std::vector<uint32_t>& order,
                             const std::vector<size_t>& group_ends) const {
    const Model& model = *scope_.model;
    const std::vector<double> seconds = seconds_of_positions(model, 0, Rates{}, /*accumulates=*/false);
    std::vector<double> before(seconds.size() + 1, 0), shares;
    std::partial_sum(seconds.begin(), seconds.end(), before.begin() + 1);
    for (const uint32_t device : order) shares.push_back(speed_[device]);
    std::vector<uint32_t> ends = deal_row(before, shares, problem.tail);
    const double whole = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (size_t g = 0; g + 1 < group_ends.size(); ++g) {
      const auto stage = static_cast<uint32_t>(group_ends[g] - 1);
      const double play = kFencePlay * before.back() * std::min(shares[stage], shares[stage + 1]) / whole;
      const uint32_t lowest = problem.first_end(stage, stage == 0 ? 0 : ends[stage - 1]),
                     highest = ends[stage + 1] - 1;
      uint32_t best = ends[stage];
      for (uint32_t border = lowest; border <= highest; ++border)
        if (std::abs(before[border] - before[ends[stage]]) <= play &&
            problem.crossing().over(border) < problem.crossing().over(best))
          best = border;
      ends[stage] = best;
    }
    return ends;
  }

  const Scope& scope_;
  const ClusterView& cluster_;
  std::vector<double> speed_;  // by device
};

}  // namespace

std::vector<Proposal> propose_op_fence(const Scope& scope) { return Fences(scope).run(); }

}  // namespace weft::plan
