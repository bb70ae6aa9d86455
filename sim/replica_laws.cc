#include "sim/replica_laws.h"

#include <algorithm>

#include "replicas/left_out.h"
#include "sim/arithmetic.h"

namespace weft::sim {

using dag::StateSlot;
using replicas::Begun;
using replicas::LocalSteps;
using replicas::OuterRound;

namespace {

std::string number(uint64_t value) { return std::to_string(value); }

std::optional<uint64_t> find(const RoundsAlone::State& state, const dag::StateKey& key) {
  const auto shared = state.shared.find(key.name);
  if (shared == state.shared.end()) return std::nullopt;
  if (key.slot == StateSlot::Value) return shared->second.agreed;
  if (key.slot == StateSlot::OuterMomentum) return shared->second.momentum;
  if (key.slot == StateSlot::ReturnResidue) return shared->second.return_residue;
  if (key.replica >= state.own.size()) return std::nullopt;
  const RoundsAlone::OwnTensor& own = state.own[key.replica].tensors.at(key.name);
  if (key.slot == StateSlot::Residue) return own.residue;
  return own.slots[key.slot == StateSlot::V ? 1 : 0];
}

uint64_t steps_at(const LocalSteps& local, uint64_t inner) {
  return inner <= local.begun_after ? inner : steps_after(local, inner);
}

// The inner step after which so many steps of the run are made: in each at least one is.
std::optional<uint64_t> find_inner(const LocalSteps& local, uint64_t steps) {
  uint64_t low = local.begun_after, high = last_inner_step(local);
  while (low < high) {
    const uint64_t middle = (low + high) / 2;
    if (steps_at(local, middle) < steps)
      low = middle + 1;
    else
      high = middle;
  }
  return steps_at(local, low) == steps ? std::optional(low) : std::nullopt;
}

std::string describe(const RoundsAlone::Rounds& rounds) {
  std::string text;
  for (const OuterRound& round : rounds) {
    text += " [" + number(round.steps_before) + ":";
    for (const uint64_t steps : round.steps) text += " " + number(steps);
    for (const auto& range : round.taken) text += " takes " + number(range.first) + "+" + number(range.count);
    if (!round.inherited.is_whole()) text += " inherits";
    text += "]";
  }
  return text;
}

}  // namespace

ReplicaLaws::Counts& ReplicaLaws::Counts::operator+=(const Counts& more) {
  agreements += more.agreements;
  left_out += more.left_out;
  given_again += more.given_again;
  grown += more.grown;
  shrunk += more.shrunk;
  inherited += more.inherited;
  kept += more.kept;
  followed += more.followed;
  caught_up += more.caught_up;
  return *this;
}

uint64_t ReplicaLaws::told(uint64_t inner) const {
  if (!running_) return inner;
  const auto is_made = [&](uint64_t step) {
    for (uint32_t replica = 0; replica < running_->terms.count; ++replica)
      if (!(left_out_ && left_out_->left_out.has(replica)) && own_step(*running_, replica, step)) return true;
    return false;
  };
  while (inner > running_->begun_after && !is_made(inner)) --inner;
  return steps_at(*running_, inner);
}

// As those who went on after these steps would have it in their plan's event.
ReplicaLaws::Rounds ReplicaLaws::rounds_up_to(uint64_t steps, const replicas::Inherited& next) const {
  Plans plans = plans_;
  if (!next.left_out.empty() && running_) {
    LocalSteps after{.terms = running_->terms, .steps = running_->steps, .begun_after = steps};
    plans.push_back({after, next});
  }
  return rounds_of(plans, steps);
}

ReplicaLaws::Rounds ReplicaLaws::rounds_after(uint64_t inner) const {
  if (!left_out_ || left_out_->step != inner) return rounds_of(plans_, steps_at(*running_, inner));
  const replicas::Without made = without(*running_, inner, left_out_->left_out.replicas);
  return rounds_up_to(made.made(), {.left_out = left_out_->left_out.replicas});
}

ReplicaLaws::Complaint ReplicaLaws::check_tensors(const RoundsAlone::State& state,
                                                  std::span<const proto::TensorReference> tensors,
                                                  const std::string& where) const {
  for (const proto::TensorReference& tensor : tensors) {
    const auto wanted = find(state, tensor.key);
    if (!wanted) return where + " holds a tensor that the run has not: " + to_string(tensor.key);
    if (*wanted != value_of(tensor.sha256))
      return where + " holds another " + to_string(tensor.key) + " than the record makes";
  }
  return std::nullopt;
}

// ---- what is assigned and run

ReplicaLaws::Complaint ReplicaLaws::check_assignment(const Plans& plans,
                                                     const proto::AssignStage& assignment) {
  if (plans.empty() || !assignment.local || plans.back().local != assignment.local->steps)
    return "a stage is assigned of another plan than its event says";
  const Begun& plan = plans.back();
  const bool begins = assignment.after_step == plan.local.begun_after;
  const Rounds rounds = rounds_of(plans, steps_at(plan.local, assignment.after_step));
  const auto state =
      alone_.begun(rounds, begins ? plan.inherited : replicas::Inherited{}, plan.local.terms.count);
  const RoundsAlone::Own& own = state.own.at(assignment.seat.replica);
  if (own.updates != assignment.after_step - assignment.skipped_steps)
    return "replica " + number(assignment.seat.replica + 1) + " is to go on after " +
           number(assignment.after_step - assignment.skipped_steps) + " updates, and has made " +
           number(own.updates);
  auto wrong = check_tensors(state, assignment.tensors,
                             "an assignment after step " + number(assignment.after_step) + " of " +
                                 plan::to_string(assignment.seat));
  if (wrong) *wrong += describe(rounds);
  return wrong;
}

ReplicaLaws::Complaint ReplicaLaws::on_assigned(const proto::AssignStage& assignment) {
  assigned_.try_emplace(assignment.plan_version, plans_);
  return check_assignment(assigned_.at(assignment.plan_version), assignment);
}

ReplicaLaws::Complaint ReplicaLaws::on_loaded(const proto::AssignStage& assignment) {
  const auto plans = assigned_.find(assignment.plan_version);
  if (plans == assigned_.end()) return "a stage is loaded that was never assigned";
  return check_assignment(plans->second, assignment);
}

ReplicaLaws::Complaint ReplicaLaws::on_run(const broker::PlannedRun& plan, proto::PlanVersion version) {
  if (plans_.empty() || plan.local_steps != plans_.back().local)
    return "a run begins of another plan than its event says";
  if (running_ && running_->terms.every != plan.local_steps->terms.every)
    return "a run goes on by rounds of " + number(plan.local_steps->terms.every) + " steps, and had " +
           number(running_->terms.every);
  if (running_ && running_->terms.count < plan.local_steps->terms.count) ++counts_.grown;
  if (running_ && running_->terms.count > plan.local_steps->terms.count) ++counts_.shrunk;
  if (!plans_.back().inherited.is_whole()) ++counts_.inherited;
  if (!plan.local_steps->given_again.empty()) ++counts_.given_again;
  if (!plan.local_steps->terms.followers.empty()) ++counts_.followed;
  if (running_ && running_->terms.count == plan.local_steps->terms.count &&
      !running_->terms.followers.empty() && plan.local_steps->terms.followers.empty() &&
      plans_.back().inherited.is_whole())
    ++counts_.caught_up;
  running_ = plan.local_steps;
  version_ = version;
  left_out_.reset();
  is_ending_ = false;
  agreed_.clear();
  return std::nullopt;
}

// ---- what it makes

ReplicaLaws::Complaint ReplicaLaws::on_command(const proto::Command& command) {
  if (!running_) return std::nullopt;
  counts_.kept += command.stays ? 1 : 0;
  is_ending_ = is_ending_ || command.kind == proto::CommandKind::Settle ||
               command.kind == proto::CommandKind::LeaveOut;
  // Who is lost when all have agreed has its part in that.
  if (command.kind == proto::CommandKind::LeaveOut && command.committed < command.step) {
    left_out_ = command;
    ++counts_.left_out;
  }
  return check_agreements(command.committed);
}

void ReplicaLaws::on_agreed(const proto::AssignStage& assignment, uint64_t inner,
                            const std::map<uint32_t, uint64_t>& weights) {
  if (assignment.plan_version != version_ || may_have_wrong_means_) return;
  for (const auto& [tensor, value] : weights) agreed_[inner][{tensor, assignment.seat.replica}] = value;
}

// Once a step is committed all who have a part in the run have the same weights, and those of the record.
ReplicaLaws::Complaint ReplicaLaws::check_agreements(uint64_t committed) {
  while (!agreed_.empty() && agreed_.begin()->first <= committed) {
    const auto& [inner, weights] = *agreed_.begin();
    const Rounds rounds = rounds_after(inner);
    const RoundsAlone::State& state = alone_.after(rounds);
    std::vector<uint64_t> wanted;
    for (const std::string& name : alone_.names()) wanted.push_back(state.shared.at(name).agreed);
    for (const auto& [of, value] : weights) {
      const auto [tensor, replica] = of;
      if (left_out_ && left_out_->left_out.has(replica)) continue;
      if (value != wanted.at(tensor))
        return "replica " + number(replica + 1) + " has other weights after agreement " + number(inner) +
               " than the record makes:" + describe(rounds);
    }
    ++counts_.agreements;
    agreed_.erase(agreed_.begin());
  }
  return std::nullopt;
}

ReplicaLaws::Complaint ReplicaLaws::on_step(const proto::JobEvent& event) {
  const auto inner = running_ ? find_inner(*running_, event.step) : std::nullopt;
  if (!inner || *inner <= running_->begun_after)
    return "step " + number(event.step) + " is committed, which the run under way does not make";
  const Rounds all = rounds_of(plans_, round_of(*running_, *inner).steps_after());
  const Rounds before(all.begin(), all.end() - 1);
  const uint64_t every = running_->terms.every;
  const uint64_t begun = running_->begun_after + (*inner - running_->begun_after - 1) / every * every;
  double losses = 0, norms = 0;
  uint32_t count = 0;
  for (uint32_t replica = 0; replica < running_->terms.count; ++replica) {
    if (left_out_ && left_out_->left_out.has(replica)) continue;
    if (!own_step(*running_, replica, *inner)) continue;
    const uint64_t index =
        own_steps_after(*running_, replica, *inner) - own_steps_after(*running_, replica, begun) - 1;
    const RoundsAlone::Made made = alone_.steps_of(before, all.back(), replica).at(index);
    losses += made.loss;
    norms += made.norm;
    ++count;
  }
  if (count == 0) {  // those whose step it was are left out
    if (event.skipped) return std::nullopt;
    return "step " + number(event.step) + " has a loss, and nobody made it";
  }
  if (may_have_wrong_means_) return std::nullopt;
  if (event.loss != losses / count || event.gradient_norm != norms / count)
    return "the loss of step " + number(event.step) + " is " + std::to_string(event.loss) +
           ", by the record it is " + std::to_string(losses / count) + ":" + describe(all);
  return std::nullopt;
}

ReplicaLaws::Complaint ReplicaLaws::on_evaluation(const proto::JobEvent& event) {
  const auto inner = running_ ? find_inner(*running_, event.step) : std::nullopt;
  if (!inner) return "step " + number(event.step) + " is evaluated, which the run under way does not make";
  if (event.metrics != alone_.evaluation(rounds_after(*inner)))
    return "the evaluation after step " + number(event.step) + " is another than the record makes";
  return std::nullopt;
}

// ---- what is kept of it

// It may be one of the plan before, whose copies became durable when nobody was there to make another.
size_t ReplicaLaws::tensors_wanted(const broker::CheckpointCommitted& checkpoint) const {
  const size_t replicas = checkpoint.local->skipped_steps.size();
  size_t each = 1 + spec_.slots * replicas + (spec_.agreement.averages ? 0 : 1);
  if (spec_.agreement.is_lossy) {
    each += replicas - checkpoint.local->inherited.debtless.size();
    each += checkpoint.local->inherited.returns_are_lost ? 0 : 1;
  }
  return each * spec_.layers;
}

ReplicaLaws::Complaint ReplicaLaws::on_checkpoint(const broker::CheckpointCommitted& checkpoint) {
  const std::string where = "the checkpoint of step " + number(checkpoint.made());
  if (!checkpoint.local || !running_) return where + " says nothing of replicas";
  const replicas::Inherited& inherited = checkpoint.local->inherited;
  const Rounds rounds = rounds_up_to(checkpoint.made(), inherited);
  if (rounds.empty() || rounds.back().steps_after() != checkpoint.made())
    return where + " is of no agreement:" + describe(rounds);
  if (checkpoint.local->given_again != given_again_after(rounds))
    return where + " does not give again what was lost:" + describe(rounds);
  if (checkpoint.tensors.size() != tensors_wanted(checkpoint))
    return where + " has " + number(checkpoint.tensors.size()) + " tensors, not " +
           number(tensors_wanted(checkpoint));
  auto wrong = check_tensors(alone_.begun(rounds, inherited, checkpoint.local->skipped_steps.size()),
                             checkpoint.tensors, where);
  if (wrong) *wrong += describe(rounds);
  return wrong;
}

// The record ends in the same weights, and its steps took the samples of each step once.
ReplicaLaws::Complaint ReplicaLaws::on_result(const proto::JobResult& result) {
  const Rounds rounds = rounds_of(plans_, spec_.steps);
  if (rounds.empty() || rounds.back().steps_after() != spec_.steps)
    return "the record of its rounds does not reach its end:" + describe(rounds);
  std::vector<uint32_t> taken(spec_.steps + 1, 0);
  for (const OuterRound& round : rounds)
    for (uint64_t step = round.steps_before + 1; step <= round.steps_after(); ++step)
      if (const uint64_t of = samples_of(round, step); of > spec_.steps || ++taken[of] > 1)
        return "the samples of step " + number(of) +
               " were taken twice, or are none of the run's:" + describe(rounds);
  auto wrong = check_tensors(alone_.after(rounds), result.tensors, "the result");
  if (wrong) *wrong += describe(rounds);
  return wrong;
}

}  // namespace weft::sim
