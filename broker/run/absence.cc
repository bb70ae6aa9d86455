#include "broker/run/absence.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "broker/run/heirs.h"

namespace weft::broker {

using replicas::LeftOut;

Absence::Absence(std::shared_ptr<const PlannedRun> plan) : plan_(std::move(plan)), inner_(*plan_) {}

uint32_t Absence::replica_of(uint32_t stage) const {
  return inner_.replica_of(plan_->stages[stage].assignment->seat);
}

bool Absence::has_replica(uint32_t replica) const {
  return std::binary_search(lost_.begin(), lost_.end(), replica);
}

// ---- whether it can be

bool Absence::are_linked(uint32_t owner, const std::vector<uint32_t>& lost) const {
  for (uint32_t s = 0; s < plan_->stages.size(); ++s) {
    const proto::AssignStage& stage = *plan_->stages[s].assignment;
    if (replica_of(s) != owner || !stage.local) continue;
    std::set<plan::Seat> linked;
    for (const proto::LinkRoute& link : stage.links) linked.insert(link.seat);
    for (const proto::AgreedTensor& tensor : stage.local->tensors) {
      if (!std::binary_search(lost.begin(), lost.end(), tensor.owner)) continue;
      for (uint32_t replica = 0; replica < tensor.stages.size(); ++replica)
        if (replica != owner && !std::binary_search(lost.begin(), lost.end(), replica) &&
            !linked.contains({tensor.stages[replica], replica}))
          return false;
    }
  }
  return true;
}

bool Absence::can_be_without(uint32_t replica) const {
  if (!inner_.are_local() || replica >= inner_.replicas() || has_replica(replica)) return false;
  for (uint32_t other = 0; other < inner_.replicas(); ++other)
    if (other != replica && !has_replica(other) && !inner_.local()->terms.follows(other)) return true;
  return false;
}

std::optional<LeftOut> Absence::without(uint32_t replica, uint64_t step) const {
  const auto& local = inner_.local();
  LeftOut left_out{.replicas = lost_, .owner = left_out_.owner};
  auto& lost = left_out.replicas;
  lost.insert(std::lower_bound(lost.begin(), lost.end(), replica), replica);
  if (!can_be_without(replica) || step <= local->begun_after) return std::nullopt;
  const replicas::Without without = replicas::without(*local, step, left_out.replicas);
  const auto has_steps = [](const replicas::OuterRound& round) {
    return round.steps_after() > round.steps_before;
  };
  if (!std::all_of(without.rounds.begin(), without.rounds.end(), has_steps) ||
      without.made() == local->steps || without.made() < step ||
      without.given_again.size() > replicas::kStepRangesMax)
    return std::nullopt;
  // Others have been told who takes the means, and some may have come there.
  if (is_told() && !left_out.has(left_out.owner))
    return are_linked(left_out.owner, lost) ? std::optional(left_out) : std::nullopt;
  for (uint32_t owner = 0; owner < inner_.replicas(); ++owner) {
    left_out.owner = owner;
    if (!left_out.has(owner) && !local->terms.follows(owner) && are_linked(owner, left_out.replicas))
      return left_out;
  }
  return std::nullopt;
}

LeftOut Absence::after_agreement(uint32_t replica) const {
  LeftOut left_out{.replicas = lost_};
  left_out.replicas.insert(std::lower_bound(left_out.replicas.begin(), left_out.replicas.end(), replica),
                           replica);
  while (left_out.has(left_out.owner)) ++left_out.owner;
  return left_out;
}

// ---- what came of it

void Absence::begin(uint32_t replica, uint64_t step) {
  WEFT_CHECK(!has_replica(replica) && lost_.size() + 1 < inner_.replicas());
  lost_.insert(std::lower_bound(lost_.begin(), lost_.end(), replica), replica);
  step_ = step;
}

void Absence::begin(const proto::Command& command) {
  lost_ = command.left_out.replicas;
  step_ = command.step;
  if (command.committed >= command.step) {
    if (sequence_after_agreement_ == 0) sequence_after_agreement_ = command.sequence;
    return;
  }
  left_out_ = command.left_out;
  sequence_ = command.sequence;
  answered_.assign(plan_->stages.size(), false);
}

Status Absence::on_report(uint32_t stage, const proto::ReplicasLeftOut& report) {
  // What all have agreed on stays as it is, as every stage then says.
  if (sequence_after_agreement_ != 0 && report.sequence >= sequence_after_agreement_) return {};
  const bool is_of_earlier = is_told() && report.sequence < sequence_;  // before somebody else was lost, too
  if (has(stage) || report.step != step_ || (!is_of_earlier && !awaits(stage)))
    return fail(ErrorCode::InvalidArgument,
                "it was not asked to leave replicas out after step " + std::to_string(report.step));
  answered_[stage] = answered_[stage] || !is_of_earlier;
  too_late_ = too_late_ || report.too_late;
  return {};
}

void Absence::on_resumed(uint32_t stage) {
  if (is_told()) answered_[stage] = false;
}

bool Absence::is_open() const {
  for (uint32_t s = 0; s < answered_.size(); ++s)
    if (awaits(s)) return true;
  return false;
}

// ---- what is left

uint64_t Absence::steps_lost() const {
  if (!is_told()) return 0;
  return inner_.made(step_) - made(step_).made();
}

replicas::Without Absence::made(uint64_t step) const {
  const bool is_without = is_told() && step == step_;
  return replicas::without(*inner_.local(), step, is_without ? left_out_.replicas : std::vector<uint32_t>{});
}

void Absence::complete(CheckpointCommitted& snapshot, const std::vector<bool>& followers) const {
  if (!snapshot.local) return;
  proto::LocalPoint& local = *snapshot.local;
  const bool is_begun = snapshot.step > inner_.local()->begun_after;
  local.given_again = is_begun ? made(snapshot.step).given_again : inner_.local()->given_again;
  std::vector<bool> gone = followers;
  gone.resize(inner_.replicas(), false);
  const bool have_all = std::find(gone.begin(), gone.end(), true) == gone.end();
  if (lost_.empty() || snapshot.step != step_) {
    if (!have_all) inherit(snapshot, gone, /*returns_are_lost=*/false);
    return;
  }
  local.steps -= steps_lost();
  local.inherited.left_out = left_out_.replicas;
  for (const uint32_t replica : lost_) gone[replica] = true;
  // Of whoever was lost since the others agreed nobody has taken the place; nor the places that it had taken.
  bool returns_are_lost = false;
  for (const PlannedStage& stage : plan_->stages)
    for (const proto::AgreedTensor& tensor : stage.assignment->local->tensors)
      returns_are_lost = returns_are_lost || has_replica(left_out_.owner_of(tensor.owner));
  inherit(snapshot, gone, returns_are_lost);
}

proto::AssignStage Absence::taking_over(const proto::AssignStage& assignment) const {
  proto::AssignStage taken = assignment;
  if (taken.local)
    for (proto::AgreedTensor& tensor : taken.local->tensors) tensor.owner = left_out_.owner_of(tensor.owner);
  return taken;
}

void Absence::take_over(std::vector<StageClaims>& claims) const {
  for (uint32_t s = 0; s < claims.size(); ++s)
    claims[s] = StageClaims(taking_over(*plan_->stages[s].assignment));
}

}  // namespace weft::broker
