#include "broker/jobs/recovery_points.h"

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

void RecoveryPoints::commit_round(CheckpointCommitted round, bool direct) {
  keep_round_before();
  if (!direct)
    round_at_broker_.reset();
  else if (!round_is_direct_)
    round_at_broker_ = std::move(round_);
  round_ = std::move(round);
  round_is_direct_ = direct;
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
