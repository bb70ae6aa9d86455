#include "plan/agreed_weights.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "dag/state.h"

namespace weft::plan {
namespace {

Bytes bytes_agreed(const ReplicasRequest& request, const compress::Codec& codec,
                   const dag::TensorSpec& spec) {
  const auto count = static_cast<size_t>(spec.element_count());
  if (codec.kind == compress::Kind::Dense || count > compress::kMaxCount) return spec.bytes();
  const Bytes coded{static_cast<int64_t>(compress::wire_bytes(codec, count))};
  return request.ranges > 0 ? std::min(coded, spec.bytes()) : coded;
}

}  // namespace

std::vector<AgreedWeight> agreed_weights(const ReplicasRequest& request, const compress::Codec& codec) {
  const dag::Graph& graph = *request.pipeline.graph;
  const dag::BesideParameter slots{.slots = request.pipeline.optimizer_slots,
                                   .type = request.pipeline.slot_type};
  std::map<std::string_view, int64_t> slots_of;
  for (const dag::GraphOutput& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient)
      slots_of[output.name] = bytes_beside(graph.spec(output.value), slots);
  std::vector<AgreedWeight> weights;
  for (const dag::StateKey& key : dag::trained_state(graph, {})) {
    if (!is_weight(key.slot)) continue;
    const dag::TensorSpec& spec = graph.spec(graph.find_initializer(key.name)->value);
    const bool dense = key.slot == dag::StateSlot::RunningStatistic;
    weights.push_back({.name = key.name,
                       .bytes = dense ? spec.bytes() : bytes_agreed(request, codec, spec),
                       .slots = {key.slot == dag::StateSlot::Value ? slots_of[key.name] : 0}});
  }
  return weights;
}

}  // namespace weft::plan
