#include "broker/place/stage_state.h"

#include <algorithm>

#include "broker/run/planned_run.h"

namespace weft::broker {

using dag::StateSlot;

SavedState::SavedState(const StartPlanning& request) {
  if (!request.checkpoint) return;
  checkpoint_ = &*request.checkpoint;
  for (const auto& tensor : request.checkpoint->tensors) {
    tensors_[tensor.key] = &tensor;
    if (tensor.key.slot != StateSlot::ReturnResidue) replicas_ = std::max(replicas_, tensor.key.replica + 1);
  }
  // Plain SGD keeps nothing for a replica alone.
  if (const auto& local = checkpoint_->local)
    replicas_ = std::max(replicas_, static_cast<uint32_t>(local->skipped_steps.size()));
}

const proto::TensorReference* SavedState::find_weight(const std::string& initializer) const {
  const auto at = dag::find_weight(tensors_, initializer);
  return at != tensors_.end() ? at->second : nullptr;
}

const proto::TensorReference* SavedState::find(const dag::StateKey& key) const {
  const auto at = tensors_.find(key);
  return at != tensors_.end() ? at->second : nullptr;
}

uint64_t SavedState::skipped_steps(uint32_t replica) const {
  return checkpoint_ != nullptr ? checkpoint_->skipped_by(replica) : 0;
}

StageState::StageState(const proto::AssignStage& stage) : stage_(stage) {
  for (const auto& tensor : stage.tensors) names_.insert(tensor.key.name);
  if (!stage.local && !shares_slots(stage)) return;
  const std::vector<proto::AgreedTensor>& agreed = agreed_tensors(stage);
  const std::vector<uint32_t> parts = parts_of(agreed);
  for (size_t i = 0; i < agreed.size(); ++i) {
    std::set<uint32_t>& owned = owned_[agreed[i].name];
    if (agreed[i].owner == stage.seat.replica) owned.insert(parts[i]);
  }
}

const std::set<uint32_t>& StageState::owned(std::string_view initializer) const {
  static const std::set<uint32_t> kNone;
  const auto at = owned_.find(initializer);
  return at != owned_.end() ? at->second : kNone;
}

// The optimizer's.
bool StageState::has_slots(std::string_view initializer) const {
  return !shares_slots(stage_) || !owned(initializer).empty();
}

void StageState::add_beside(const SavedState& saved, const std::string& initializer,
                            std::vector<proto::TensorReference>& into) const {
  const uint32_t own = own_set(stage_);
  const auto take = [&](StateSlot slot, uint32_t from, uint32_t to) {
    const auto* found = saved.find({dag::StateOwner::Initializer, initializer, slot, from});
    if (found == nullptr) return;
    into.push_back(*found);
    into.back().key.replica = to;
  };
  const bool is_new = own >= saved.replicas();
  if (has_slots(initializer))
    for (const StateSlot slot : optimizer_slots(stage_.training.optimizer)) take(slot, is_new ? 0 : own, own);
  if (!stage_.local || !owned_.contains(initializer)) return;
  const replicas::ReplicaTerms& terms = stage_.local->steps.terms;
  if (terms.outer.type == replicas::OuterType::Nesterov) take(StateSlot::OuterMomentum, 0, 0);
  if (terms.codec.kind == compress::Kind::Dense) return;
  if (!is_new) take(StateSlot::Residue, own, own);
  if (owned(initializer).empty()) return;
  take(StateSlot::ReturnResidue, 0, 0);  // of a run on one machine, or of one before there were parts
  for (const uint32_t part : owned(initializer))
    if (part > 0) take(StateSlot::ReturnResidue, part, part);
}

bool StageState::has(const dag::StateKey& key) const {
  if (!names_.contains(key.name)) return false;
  if (is_weight(key.slot) || key.slot == StateSlot::OuterMomentum) return true;
  if (key.slot == StateSlot::ReturnResidue)
    return key.replica == 0 ? !owned(key.name).empty() : owned(key.name).contains(key.replica);
  return key.replica == own_set(stage_) && has_slots(key.name);
}

}  // namespace weft::broker
