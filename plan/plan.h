// From a graph and a view of the devices to a plan: which ops form a stage, which device runs it, how many
// microbatches are under way, how long a step will take, and why. Pure: same request, same plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "dag/graph.h"
#include "plan/device.h"

namespace weft::plan {

struct DeviceView {
  std::string name{};  // for the explanation
  std::string region{};
  Rates rates{};
  Bytes memory{};             // what may be used
  std::string fingerprint{};  // equal ones give equal bits
};
// A directed pair of devices.
struct LinkView {
  double bytes_per_second = 125e6;
  Duration latency{};  // one way
};
// Devices and the links between every two of them.
class ClusterView {
 public:
  ClusterView() = default;
  explicit ClusterView(std::vector<DeviceView> devices);  // links as LinkView{} until set

  const std::vector<DeviceView>& devices() const { return devices_; }
  const LinkView& link(size_t from, size_t to) const { return links_[from * devices_.size() + to]; }
  void set_link(size_t from, size_t to, LinkView link) { links_[from * devices_.size() + to] = link; }

 private:
  std::vector<DeviceView> devices_{};
  std::vector<LinkView> links_;
};

struct PlanRequest {
  const dag::Graph* graph = nullptr;  // lowered, with its backward phase when it trains
  uint32_t microbatches = 1;          // a step
  std::optional<uint32_t> stages{};   // nothing: as many as pay, at least one
  uint32_t optimizer_slots = 0;       // tensors beside each parameter: 0, 1 (momentum), 2 (Adam)
  ClusterView cluster{};              // the devices that may be used
  std::string strategy = "balanced";  // a name of plan/strategy.h
};

struct StagePlan {
  std::vector<uint32_t> devices{};  // indices into the cluster; one for now
  uint32_t microbatches_in_flight = 1;
  Bytes memory{};                  // persistent and all microbatches in flight
  Duration forward{}, backward{};  // of one microbatch, compute alone
};
struct PlannedLink {
  uint32_t from_stage = 0, to_stage = 0;
  Bytes bytes{};  // a microbatch, both phases, in this direction
};
struct Plan {
  std::vector<uint32_t> stage_of_op{};  // by op of the graph: what dag::split takes
  std::vector<StagePlan> stages{};
  std::vector<PlannedLink> links{};
  Duration predicted_step{};
  Duration predicted_alone{};              // the whole job on the fastest of the devices, memory aside
  std::vector<std::string> explanation{};  // lines for people: what was chosen and why
};

// Errors: Infeasible, saying what lacks (devices, memory: how much where), InvalidArgument.
Result<Plan> make_plan(const PlanRequest& request);

// Stages for another graph of the same job (evaluation, prediction) so that every initializer lies where
// `stage_of_op` has it in `graph`: what reads an initializer goes at least as far as its stage, and what
// comes after goes along. Fusion groups stay whole. The result covers every op; a stage may be without ops.
std::vector<uint32_t> follow_stages(const dag::Graph& other, const dag::Graph& graph,
                                    const std::vector<uint32_t>& stage_of_op);

}  // namespace weft::plan
