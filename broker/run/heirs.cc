#include "broker/run/heirs.h"

#include <algorithm>
#include <set>
#include <utility>

namespace weft::broker {

bool is_own(dag::StateSlot slot) {
  return !is_weight(slot) && slot != dag::StateSlot::OuterMomentum && slot != dag::StateSlot::ReturnResidue;
}

namespace {
std::vector<proto::TensorReference> inherited_tensors(const std::vector<proto::TensorReference>& all,
                                                      const std::vector<bool>& gone, uint32_t heir,
                                                      bool returns_are_lost) {
  std::vector<proto::TensorReference> tensors;
  for (const auto& tensor : all) {
    const dag::StateKey& key = tensor.key;
    if ((is_own(key.slot) && gone[key.replica]) ||
        (returns_are_lost && key.slot == dag::StateSlot::ReturnResidue))
      continue;
    tensors.push_back(tensor);
    if (!is_own(key.slot) || key.slot == dag::StateSlot::Residue || key.replica != heir) continue;
    for (uint32_t replica = 0; replica < gone.size(); ++replica)
      if (gone[replica]) {
        tensors.push_back(tensor);
        tensors.back().key.replica = replica;
      }
  }
  return tensors;
}
}  // namespace

bool inherit(CheckpointCommitted& snapshot, const std::vector<bool>& gone, bool returns_are_lost) {
  const auto heir = static_cast<uint32_t>(std::find(gone.begin(), gone.end(), false) - gone.begin());
  if (heir == gone.size()) return false;
  snapshot.tensors = inherited_tensors(snapshot.tensors, gone, heir, returns_are_lost);
  proto::LocalPoint& local = *snapshot.local;
  std::vector<uint32_t>& sets = local.inherited.sets;
  if (sets.empty())
    for (uint32_t replica = 0; replica < gone.size(); ++replica) sets.push_back(replica);
  std::set<uint32_t> debtless(local.inherited.debtless.begin(), local.inherited.debtless.end());
  for (uint32_t replica = 0; replica < gone.size(); ++replica)
    if (gone[replica]) {
      sets[replica] = sets[heir];
      local.skipped_steps[replica] = local.skipped_steps[heir];
      debtless.insert(replica);
    }
  local.inherited.debtless.assign(debtless.begin(), debtless.end());
  local.inherited.returns_are_lost = local.inherited.returns_are_lost || returns_are_lost;
  snapshot.skipped_steps = local.skipped_steps.front();
  return true;
}

}  // namespace weft::broker
