#include "plan/refine.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "plan/constraints.h"
#include "plan/placement.h"

namespace weft::plan {
namespace {

constexpr int kLooksMax = 4000;
constexpr double kBetter = 1 - 1e-9;

class Refinement {
 public:
  Refinement(const Scope& scope, Proposal proposal)
      : scope_(scope),
        proposal_(std::move(proposal)),
        problem_(problem_of(*scope.request, *scope.model, proposal_)) {
    if (scope.tight)
      for (auto& stage : problem_.stages) stage.in_flight = 1;
    for (const uint32_t device : scope.devices)
      if (std::find(proposal_.devices.begin(), proposal_.devices.end(), device) == proposal_.devices.end())
        idle_.push_back(device);
    best_ = value(problem_, proposal_.ends);
  }

  Proposal run() {
    for (bool changed = true; changed && looks_ < kLooksMax;) {
      changed = shift_borders();
      changed = exchange_devices() || changed;
    }
    proposal_.score = best_;
    return std::move(proposal_);
  }

 private:
  // The stage's device, and the links on both of its sides.
  void put(PartitionProblem& problem, const std::vector<uint32_t>& devices, size_t stage) {
    const ClusterView& cluster = scope_.request->cluster;
    const DeviceView& device = cluster.devices()[devices[stage]];
    auto& seconds = seconds_of_[devices[stage]];
    if (!seconds) seconds = seconds_before(*scope_.model, device, scope_.request->microbatches > 1);
    problem.stages[stage].seconds_before = seconds;
    problem.stages[stage].memory = device.memory.value;
    problem.stages[stage].holds_copy = device.host_memory.value == 0;
    problem.stages[stage].uplink = device.uplink;
    problem.stages[stage].downlink = device.downlink;
    for (const size_t next : {stage, (stage + 1) % devices.size()}) {
      if (next == 0 && !problem.ring) continue;
      const uint32_t before = devices[next == 0 ? devices.size() - 1 : next - 1];
      problem.stages[next].receive = cluster.link(before, devices[next]);
      problem.stages[next].give_back = cluster.link(devices[next], before);
    }
  }
  // Of a cut that does not fit: infinite.
  double value(const PartitionProblem& problem, const std::vector<uint32_t>& ends) {
    ++looks_;
    for (uint32_t stage = 0; stage < ends.size(); ++stage)
      if (!problem.fits(stage == 0 ? 0 : ends[stage - 1], ends[stage], stage))
        return std::numeric_limits<double>::infinity();
    return estimate(problem.cost_of(ends), scope_.request->microbatches);
  }

  bool shift_borders() {
    bool changed = false;
    const size_t borders = proposal_.ends.size() - (problem_.ring ? 0 : 1);  // of a ring, the tail's too
    for (size_t border = 0; border < borders; ++border)
      for (const int by : {-8, -3, -1, 1, 3, 8}) {
        if (looks_ >= kLooksMax) return changed;
        std::vector<uint32_t> ends = proposal_.ends;
        const int64_t at = int64_t{ends[border]} + by;
        if (at < first_place(border) || at > last_place(border)) continue;
        ends[border] = static_cast<uint32_t>(at);
        PartitionProblem problem = problem_;
        problem.tail = ends.back();
        changed = take(proposal_.devices, problem, std::move(ends)) || changed;
      }
    return changed;
  }
  int64_t first_place(size_t border) const {
    return problem_.first_end(static_cast<uint32_t>(border), border == 0 ? 0 : proposal_.ends[border - 1]);
  }
  int64_t last_place(size_t border) const {
    if (border + 1 < proposal_.ends.size()) return int64_t{proposal_.ends[border + 1]} - 1;
    return problem_.ring->tail_max;
  }

  bool exchange_devices() {
    bool changed = false;
    const size_t count = proposal_.devices.size();
    for (size_t a = 0; a < count; ++a) {
      for (size_t b = a + 1; b < count; ++b) {
        if (looks_ >= kLooksMax) return changed;
        std::vector<uint32_t> devices = proposal_.devices;
        std::swap(devices[a], devices[b]);
        changed = take_devices(std::move(devices)) || changed;
      }
      for (uint32_t& idle : idle_) {
        if (looks_ >= kLooksMax) return changed;
        std::vector<uint32_t> devices = proposal_.devices;
        const uint32_t replaced = std::exchange(devices[a], idle);
        if (!take_devices(std::move(devices))) continue;
        idle = replaced;
        changed = true;
      }
    }
    return changed;
  }

  bool take_devices(std::vector<uint32_t> devices) {
    PartitionProblem problem = problem_;
    for (size_t stage = 0; stage < devices.size(); ++stage)
      if (devices[stage] != proposal_.devices[stage]) put(problem, devices, stage);
    return take(devices, problem, proposal_.ends);
  }
  bool take(const std::vector<uint32_t>& devices, const PartitionProblem& problem,
            std::vector<uint32_t> ends) {
    if (!keeps_ranges(scope_.pinned, devices, ends)) return false;
    const double now = value(problem, ends);
    if (now >= best_ * kBetter) return false;
    best_ = now;
    proposal_.devices = devices;
    proposal_.ends = std::move(ends);
    problem_ = problem;
    return true;
  }

  const Scope& scope_;
  Proposal proposal_;
  PartitionProblem problem_;
  std::vector<uint32_t> idle_;
  std::map<uint32_t, std::shared_ptr<const std::vector<double>>> seconds_of_;  // by device
  double best_ = 0;
  int looks_ = 0;
};

}  // namespace

Proposal refine(const Scope& scope, Proposal proposal) {
  return Refinement(scope, std::move(proposal)).run();
}

}  // namespace weft::plan
