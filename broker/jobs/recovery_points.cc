#include "broker/jobs/recovery_points.h"

#include <algorithm>
#include <utility>

namespace weft::broker {

const CheckpointCommitted* RecoveryPoints::newest() const { return round_ ? &*round_ : checkpoint(); }

std::string RecoveryPoints::describe() const {
  if (newest() == nullptr) return "the start";
  return (round_ ? "the copy of step " : "the checkpoint of step ") + std::to_string(newest()->made());
}

void RecoveryPoints::keep_round_before() {
  round_before_.clear();
  if (round_ && !round_is_direct_)
    for (const auto& tensor : round_->tensors) round_before_.push_back(tensor.sha256);
}

void RecoveryPoints::commit_checkpoint(CheckpointCommitted checkpoint) {
  keep_round_before();
  round_.reset();
  round_at_broker_.reset();
  round_is_direct_ = false;
  checkpoints_.push_back(std::move(checkpoint));
  if (checkpoints_.size() > 2) checkpoints_.erase(checkpoints_.begin());
}

void RecoveryPoints::commit_round(CheckpointCommitted round, bool direct, bool stays) {
  keep_round_before();
  if (!direct)
    round_at_broker_.reset();
  else if (!round_is_direct_)
    round_at_broker_ = std::move(round_);
  round_ = std::move(round);
  round_is_direct_ = direct;
  round_stays_ = stays;
}

namespace {
// Of one replica alone.
bool is_own(dag::StateSlot slot) {
  return !is_weight(slot) && slot != dag::StateSlot::OuterMomentum && slot != dag::StateSlot::ReturnResidue;
}
}  // namespace

bool RecoveryPoints::inherit(const std::set<Digest>& lost) {
  if (!stays() || !round_->local) return false;
  proto::LocalPoint local = *round_->local;
  const size_t count = local.skipped_steps.size();
  std::vector<bool> gone(count, false);
  bool returns_are_lost = false;
  for (const auto& tensor : round_->tensors) {
    if (!lost.contains(tensor.sha256)) continue;
    if (tensor.key.slot == dag::StateSlot::ReturnResidue)
      returns_are_lost = true;
    else if (is_own(tensor.key.slot) && tensor.key.replica < count)
      gone[tensor.key.replica] = true;
    else
      return false;
  }
  const auto heir = static_cast<uint32_t>(std::find(gone.begin(), gone.end(), false) - gone.begin());
  if (heir == count) return false;
  std::vector<proto::TensorReference> tensors;
  for (const auto& tensor : round_->tensors) {
    const dag::StateKey& key = tensor.key;
    if ((is_own(key.slot) && gone[key.replica]) ||
        (returns_are_lost && key.slot == dag::StateSlot::ReturnResidue))
      continue;
    tensors.push_back(tensor);
    if (!is_own(key.slot) || key.slot == dag::StateSlot::Residue || key.replica != heir) continue;
    for (uint32_t replica = 0; replica < count; ++replica)
      if (gone[replica]) {
        tensors.push_back(tensor);
        tensors.back().key.replica = replica;
      }
  }
  std::vector<uint32_t>& sets = local.inherited.sets;
  if (sets.empty())
    for (uint32_t replica = 0; replica < count; ++replica) sets.push_back(replica);
  std::set<uint32_t> debtless(local.inherited.debtless.begin(), local.inherited.debtless.end());
  for (uint32_t replica = 0; replica < count; ++replica)
    if (gone[replica]) {
      sets[replica] = sets[heir];
      local.skipped_steps[replica] = local.skipped_steps[heir];
      debtless.insert(replica);
    }
  local.inherited.debtless.assign(debtless.begin(), debtless.end());
  local.inherited.returns_are_lost = local.inherited.returns_are_lost || returns_are_lost;
  round_->tensors = std::move(tensors);
  round_->skipped_steps = local.skipped_steps.front();
  round_->local = std::move(local);
  return true;
}

bool RecoveryPoints::drop_round() {
  if (!round_) return false;
  round_ = std::exchange(round_at_broker_, std::nullopt);
  round_is_direct_ = false;
  holders.clear();
  return true;
}

void RecoveryPoints::drop_damaged_checkpoint() {
  if (!checkpoints_.empty()) checkpoints_.pop_back();
}

void RecoveryPoints::end() {
  round_.reset();
  round_at_broker_.reset();
  round_is_direct_ = false;
  round_before_.clear();
  holders.clear();
}

void RecoveryPoints::add_transient(std::vector<Digest>& blobs) const {
  if (round_ && !round_is_direct_)
    for (const auto& tensor : round_->tensors) blobs.push_back(tensor.sha256);
  if (round_at_broker_)
    for (const auto& tensor : round_at_broker_->tensors) blobs.push_back(tensor.sha256);
  blobs.insert(blobs.end(), round_before_.begin(), round_before_.end());
}

void RecoveryPoints::add_durable(std::set<Digest>& blobs) const {
  for (const CheckpointCommitted& checkpoint : checkpoints_)
    for (const auto& tensor : checkpoint.tensors) blobs.insert(tensor.sha256);
}

}  // namespace weft::broker
