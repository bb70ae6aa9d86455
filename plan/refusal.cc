#include "plan/refusal.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "plan/constraints.h"
#include "plan/explain.h"
#include "plan/kinds.h"

namespace weft::plan {
namespace {

tl::unexpected<Error> bad(const std::string& what) {
  return fail(ErrorCode::InvalidArgument, "a plan needs " + what);
}

Status check_cluster(const ClusterView& cluster) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto& devices = cluster.devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    const Rates& rates = devices[i].rates;
    if (!positive(rates.matmul_flops_per_second) || !positive(rates.convolution_flops_per_second) ||
        !positive(rates.memory_bytes_per_second) || !std::isfinite(rates.kernel_seconds) ||
        rates.kernel_seconds < 0)
      return bad("positive rates of device '" + devices[i].name + "'");
    if (!(devices[i].uplink > 0) || !(devices[i].downlink > 0))
      return bad("positive bandwidth of device '" + devices[i].name + "'");
  }
  if (!cluster.all_links([&](const LinkView& link) {
        return positive(link.bytes_per_second) && link.latency >= Duration{};
      }))
    return bad("a positive bandwidth of every link");
  return {};
}

}  // namespace

Status check_request(const PlanRequest& request) {
  if (!request.graph || request.graph->ops().empty()) return bad("a graph with ops");
  if (request.microbatches == 0) return bad("at least one microbatch a step");
  if (request.stages == 0u) return bad("at least one stage");
  if (request.optimizer_slots > 8 || request.agreed_slots > 8) return bad("at most eight optimizer slots");
  if (request.slots_among < 1) return bad("slots among no devices");
  if (!(request.owner_share_max > 0) || request.owner_share_max > 1)
    return bad("a share of the parameters above 0 and up to 1");
  for (const Pin& pin : request.pins)
    if (pin.of.empty() || pin.of.back().index >= request.graph->ops().size() ||
        pin.device >= request.cluster.devices().size())
      return bad("pins of ops and devices that it has");
  if (request.gradient_sums < 1 || request.gradient_sums > 2)
    return bad("a gradient is summed up in one or two tensors");
  const size_t classes = std::max<size_t>(1, request.classes.size());
  for (const auto& lowered : request.classes)
    if (!lowered || lowered->op_of.size() != request.graph->ops().size())
      return bad("the graph of each class made from its own");
  for (const DeviceView& device : request.cluster.devices())
    if (device.device_class >= classes) return bad("the class of device '" + device.name + "'");
  return check_cluster(request.cluster);
}

Status check_stages(const PlanRequest& request, const Model& model) {
  const uint32_t asked = request.stages.value_or(1);
  const size_t there = request.cluster.devices().size();
  const auto no = [](const std::string& why) { return fail(ErrorCode::Infeasible, why); };
  if (there < asked)
    return no("stages: " + std::to_string(asked) + " needs " + std::to_string(asked) +
              (asked == 1 ? " peer, " : " peers, ") + std::to_string(there) +
              (there == 1 ? " is there" : " are there"));
  if (request.equal_bits == EqualBits::Require && largest_kind(request.cluster) < asked)
    return no("equal_bits: require needs " + std::to_string(asked) + " peers of one fingerprint; there are " +
              describe_kinds(request.cluster) + ". With prefer they work together");
  if (model.positions < asked)
    return no("the model cannot be cut into " + std::to_string(asked) + " stages: it has " +
              std::to_string(model.positions) + " pieces that stay whole; ask for fewer stages");
  return {};
}

Error why_nothing_fits(const Evaluator& evaluator) {
  const PlanRequest& request = evaluator.request();
  const Model& model = evaluator.model();
  const auto& devices = request.cluster.devices();
  if (const std::string why = why_not_kept(request, model); !why.empty())
    return {ErrorCode::Infeasible, "the pins cannot be kept: " + why};
  for (const std::string& why : {evaluator.owners().why_not_kept(), evaluator.sites().why_not_kept()})
    if (!why.empty()) return {ErrorCode::Infeasible, why};
  Bytes all;
  for (const DeviceView& device : devices) all += device.memory;
  const auto& held = model.held_before;
  const Bytes state{held.parameters.back() + request.beside().bytes(held.parameters.back()) +
                    held.other.back()};
  const Bytes persistent{2 * state.value - held.fixed.back() +
                         held.parameters.back() * request.gradient_sums};
  std::string names;
  for (size_t i = 0; i < std::min(devices.size(), kNamesShown); ++i)
    names += (i ? ", " : "") + devices[i].name;
  if (devices.size() > kNamesShown) names += ", ...";
  std::string text =
      "the model does not fit: parameters, gradients, optimizer state and a copy for recovery take " +
      show(persistent) + ", activations of one microbatch about " + show(Bytes{held.saved.back()}) +
      "; the " + std::to_string(devices.size()) + (devices.size() == 1 ? " peer has " : " peers have ") +
      show(all) + " in all (" + names + ")";
  if (const auto& shortage = evaluator.shortage())
    text += "; the closest cut needs " + show(shortage->needed) + " on " + shortage->device + ", which has " +
            show(shortage->there);
  if (const std::string limit = evaluator.owners().describe_limit(); !limit.empty())
    text += "; with " + limit;
  if (request.every_site) text += "; with an op with parameters at every site";
  if (!request.pins.empty()) text += "; with " + describe_pins(request.pins, request.cluster);
  if (request.equal_bits == EqualBits::Require && kinds_of(request.cluster).size() > 1)
    text += "; equal_bits: require takes only one of " + describe_kinds(request.cluster);
  return {ErrorCode::Infeasible, text + ". Add peers, allow more stages, or take smaller microbatches"};
}

}  // namespace weft::plan
