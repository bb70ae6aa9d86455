#include "plan/agreed_weights.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "dag/state.h"
#include "replicas/fragments.h"
#include "replicas/parts.h"

namespace weft::plan {
namespace {

Bytes bytes_agreed(const ReplicasRequest& request, const compress::Codec& codec, size_t count) {
  const Bytes dense{static_cast<int64_t>(count * sizeof(float))};
  if (codec.kind == compress::Kind::Dense || count > compress::kMaxCount) return dense;
  const Bytes coded{static_cast<int64_t>(compress::wire_bytes(codec, count))};
  return request.ranges > 0 ? std::min(coded, dense) : coded;
}

size_t numbers_of(const dag::Graph& graph, const std::string& initializer) {
  return static_cast<size_t>(graph.spec(graph.find_initializer(initializer)->value).element_count());
}

std::vector<dag::StateKey> agreed_keys(const dag::Graph& graph) {
  std::vector<dag::StateKey> keys = dag::trained_state(graph, {});
  std::erase_if(keys, [](const dag::StateKey& key) { return !is_weight(key.slot); });
  return keys;
}

}  // namespace

Bytes bytes_to_give(const ReplicasRequest& request) {
  const dag::Graph& graph = *request.pipeline.graph;
  Bytes bytes;
  for (const dag::StateKey& key : agreed_keys(graph)) {
    const dag::TensorSpec& spec = graph.spec(graph.find_initializer(key.name)->value);
    bytes += Bytes{2 * spec.bytes().value + request.pipeline.beside().bytes(spec)};
  }
  return bytes;
}

std::vector<AgreedWeight> agreed_weights(const ReplicasRequest& request, const compress::Codec& codec) {
  const dag::Graph& graph = *request.pipeline.graph;
  const dag::BesideParameter slots{.slots = request.pipeline.optimizer_slots,
                                   .type = request.pipeline.slot_type};
  std::map<std::string_view, int64_t> slots_of;
  for (const dag::GraphOutput& output : graph.outputs())
    if (output.role == dag::OutputRole::Gradient)
      slots_of[output.name] = bytes_beside(graph.spec(output.value), slots);
  const std::vector<dag::StateKey> keys = agreed_keys(graph);
  size_t all = 0;
  std::vector<uint64_t> sizes;
  for (const dag::StateKey& key : keys) all += sizes.emplace_back(numbers_of(graph, key.name));
  const std::vector<uint32_t> fragments = replicas::fragments_of(sizes, request.fragments);
  const bool divides = request.divides_tensors && request.ranges == 0 && compress::is_by_parts(codec) &&
                       keys.size() <= replicas::kPlacesMax;
  std::vector<AgreedWeight> weights;
  for (uint32_t place = 0; place < keys.size(); ++place) {
    const std::string& name = keys[place].name;
    const size_t elements = sizes[place];
    if (keys[place].slot == dag::StateSlot::RunningStatistic) {
      weights.push_back({.name = name,
                         .number = place,
                         .fragment = fragments[place],
                         .bytes = bytes_agreed(request, compress::Codec{}, elements)});
      continue;
    }
    const std::vector<replicas::Part> parts =
        divides ? replicas::parts_of(elements, all) : std::vector<replicas::Part>{{0, elements}};
    for (const replicas::Part& part : parts)
      weights.push_back({.name = name,
                         .number = replicas::agreed_number(place, part.first),
                         .elements = parts.size() > 1 ? part.count : 0,
                         .fragment = fragments[place],
                         .bytes = bytes_agreed(request, codec, part.count),
                         .slots = {parts.size() > 1 ? 0 : slots_of[name]}});
  }
  return weights;
}

}  // namespace weft::plan
