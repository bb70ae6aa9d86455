#include "broker/jobs/recovery_points.h"

#include <utility>

#include "broker/run/heirs.h"

namespace weft::broker {

const CheckpointCommitted* RecoveryPoints::newest() const { return round_ ? &*round_ : checkpoint(); }

std::string RecoveryPoints::describe() const {
  if (newest() == nullptr) return "the start";
  return (round_ ? "the copy of step " : "the checkpoint of step ") + std::to_string(newest()->made());
}

std::string RecoveryPoints::describe_heirs() const {
  if (newest() == nullptr || !newest()->local || newest()->local->inherited.debtless.empty()) return {};
  const replicas::Inherited& inherited = newest()->local->inherited;
  std::string gone;
  for (const uint32_t replica : inherited.debtless)
    gone += (gone.empty() ? "" : ", ") + std::to_string(replica + 1);
  const bool is_one = inherited.debtless.size() == 1;
  return (is_one ? "what replica " : "what replicas ") + gone +
         " alone had is gone: " + (is_one ? "it goes on" : "they go on") +
         " with the optimizer's state of replica " +
         std::to_string(inherited.sets[inherited.debtless.front()] + 1) + ", and " +
         (is_one ? "owes" : "owe") + " nothing";
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

bool RecoveryPoints::inherit(const std::set<Digest>& lost) {
  if (!stays() || !round_->local) return false;
  std::vector<bool> gone(round_->local->skipped_steps.size(), false);
  bool returns_are_lost = false;
  for (const auto& tensor : round_->tensors) {
    if (!lost.contains(tensor.sha256)) continue;
    if (tensor.key.slot == dag::StateSlot::ReturnResidue)
      returns_are_lost = true;
    else if (is_own(tensor.key.slot) && tensor.key.replica < gone.size())
      gone[tensor.key.replica] = true;
    else
      return false;
  }
  return broker::inherit(*round_, gone, returns_are_lost);
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
