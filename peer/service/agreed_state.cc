#include "peer/service/agreed_state.h"

#include <algorithm>

namespace weft::peer {

using dag::StateKey;
using dag::StateSlot;
using dag::Tensor;

namespace {

StateKey key_of(const StateKey& weight, StateSlot slot, uint32_t replica = 0) {
  return {.owner = weight.owner, .name = weight.name, .slot = slot, .replica = replica};
}

Tensor tensor_of(const dag::TensorSpec& spec, std::span<const float> values) {
  return Tensor(spec, std::as_bytes(values));
}

// What there is of it; zeros where there is nothing.
Status take_kept(const KeptBetweenAgreements& kept, const StateKey& key, const proto::AgreedWeight& weight,
                 bool is_part, std::vector<float>& values) {
  values.resize(weight.elements());
  const auto at = kept.find(key);
  if (at == kept.end()) return {};
  if (at->second.spec() != (is_part ? weight.spec : weight.whole))
    return fail(ErrorCode::InvalidArgument, "'" + to_string(key) + "' has another shape");
  std::ranges::copy(is_part ? at->second.as<float>() : part_of(at->second, weight), values.begin());
  return {};
}

}  // namespace

Result<std::vector<AgreedState>> read_agreed_state(const proto::AssignStage& assignment, State& state,
                                                   const KeptBetweenAgreements& kept) {
  const replicas::ReplicaTerms& terms = assignment.local->steps.terms;
  std::vector<AgreedState> all;
  Tensor whole;
  for (proto::AgreedWeight& weight : agreed_weights(assignment)) {
    if (weight.spec.dtype != dag::DType::F32)
      return fail(ErrorCode::Unsupported,
                  "'" + weight.key.name + "' is no float32, and replicas agree about that alone");
    if (weight.first() == 0) {
      WEFT_TRY(whole, state.read(weight.key));
    }
    const auto values = part_of(whole, weight);
    AgreedState& here = all.emplace_back();
    here.agreed.assign(values.begin(), values.end());
    here.weight = std::move(weight);
    if (here.weight.is_statistic) continue;
    const auto take = [&](StateSlot slot, uint32_t number, bool is_part, std::vector<float>& into) {
      return take_kept(kept, key_of(here.weight.key, slot, number), here.weight, is_part, into);
    };
    if (terms.outer.type == replicas::OuterType::Nesterov)
      WEFT_TRY_STATUS(take(StateSlot::OuterMomentum, 0, false, here.momentum));
    if (terms.codec.kind == compress::Kind::Dense) continue;
    WEFT_TRY_STATUS(take(StateSlot::Residue, assignment.seat.replica, false, here.residue));
    if (!here.weight.is_ours) continue;
    WEFT_TRY_STATUS(take(StateSlot::ReturnResidue, 0, false, here.return_residue));
    if (const uint32_t part = here.weight.part; part > 0)
      WEFT_TRY_STATUS(take(StateSlot::ReturnResidue, part, true, here.return_residue));
  }
  return all;
}

size_t end_of_tensor(std::span<const AgreedState> all, size_t begin) {
  size_t end = begin + 1;
  while (end < all.size() && all[end].weight.first() > 0) ++end;
  return end;
}

Tensor whole_tensor(std::span<const AgreedState> all, size_t begin, size_t end,
                    std::vector<float> AgreedState::*values) {
  const proto::AgreedWeight& weight = all[begin].weight;
  if (weight.part == 0) return tensor_of(weight.whole, all[begin].*values);
  Tensor whole(weight.whole);
  for (size_t i = begin; i < end; ++i)
    std::ranges::copy(all[i].*values, whole.mutable_as<float>().subspan(all[i].weight.first()).begin());
  return whole;
}

std::span<const float> part_of(const Tensor& whole, const proto::AgreedWeight& weight) {
  return whole.as<float>().subspan(weight.first(), weight.elements());
}

std::vector<std::pair<StateKey, Tensor>> kept_tensors(std::span<const AgreedState> all, uint32_t replica) {
  std::vector<std::pair<StateKey, Tensor>> tensors;
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    end = end_of_tensor(all, begin);
    const StateKey& weight = all[begin].weight.key;
    const auto put = [&](StateSlot slot, uint32_t number, std::vector<float> AgreedState::*values) {
      if (!(all[begin].*values).empty())
        tensors.emplace_back(key_of(weight, slot, number), whole_tensor(all, begin, end, values));
    };
    put(StateSlot::OuterMomentum, 0, &AgreedState::momentum);
    put(StateSlot::Residue, replica, &AgreedState::residue);
    for (const AgreedState& part : all.subspan(begin, end - begin))
      if (!part.return_residue.empty())
        tensors.emplace_back(key_of(weight, StateSlot::ReturnResidue, part.weight.part),
                             tensor_of(part.weight.spec, part.return_residue));
  }
  return tensors;
}

}  // namespace weft::peer
