#include "proto/agreed_weights.h"

#include <algorithm>
#include <map>
#include <string_view>

#include "replicas/mean_check.h"

namespace weft::proto {

std::vector<uint32_t> parts_of(const std::vector<AgreedTensor>& tensors) {
  std::vector<uint32_t> parts;
  parts.reserve(tensors.size());
  for (const AgreedTensor& tensor : tensors) {
    const bool begins = parts.empty() || replicas::first_of(tensor.number) == 0;
    parts.push_back(tensor.elements == 0 ? 0 : begins ? 1 : parts.back() + 1);
  }
  return parts;
}

bool is_before(const AgreedTensor& a, const AgreedTensor& b) {
  return replicas::is_before(a.number, b.number);
}

dag::TensorSpec spec_of(const AgreedTensor& tensor, const dag::TensorSpec& whole) {
  if (tensor.elements == 0) return whole;
  return {whole.dtype, {static_cast<int64_t>(tensor.elements)}};
}

std::vector<AgreedWeight> agreed_weights(const AssignStage& assign) {
  std::vector<AgreedWeight> weights;
  if (!assign.local) return weights;
  for (const StageProgram& program : assign.programs) {
    if (program.kind != ProgramKind::Train) continue;
    std::map<std::string_view, const dag::Initializer*> initializers;
    for (const dag::Initializer& initializer : program.graph->initializers())
      initializers.emplace(initializer.name, &initializer);
    const std::vector<uint32_t> parts = parts_of(assign.local->tensors);
    for (size_t i = 0; i < parts.size(); ++i) {
      const AgreedTensor& tensor = assign.local->tensors[i];
      const dag::Initializer& initializer = *initializers.at(tensor.name);
      const dag::TensorSpec& whole = program.graph->spec(initializer.value);
      dag::StateKey key = weight_key(initializer);
      weights.push_back({.tensor = &tensor,
                         .key = key,
                         .spec = spec_of(tensor, whole),
                         .whole = whole,
                         .part = parts[i],
                         .is_statistic = key.slot == dag::StateSlot::RunningStatistic,
                         .is_ours = tensor.owner == assign.seat.replica});
    }
  }
  return weights;
}

const AgreedWeight* find_agreed(const std::vector<AgreedWeight>& weights, uint32_t number) {
  const auto at = std::find_if(weights.begin(), weights.end(),
                               [&](const AgreedWeight& weight) { return weight.tensor->number == number; });
  return at == weights.end() ? nullptr : &*at;
}

size_t first_owed_piece(const AssignStage& assign, const std::vector<AgreedWeight>& weights,
                        std::optional<uint32_t> number) {
  size_t pieces = 0;
  for (const AgreedWeight& weight : weights) {
    if (!weight.is_ours || weight.codec(assign).kind == compress::Kind::Dense) continue;
    if (weight.tensor->number == number) break;
    pieces += replicas::pieces_of(weight.elements());
  }
  return pieces;
}

}  // namespace weft::proto
