#include "peer/machine/agreement_turns.h"

#include <algorithm>

namespace weft::peer {

Task AgreementTurns::make(TaskKind kind, uint64_t step) const {
  return {.kind = kind,
          .key = {proto::ProgramKind::Agree, step, 0},
          .left_out = agreements_.left_out(step),
          .settles = settles(step)};
}

// Its Differ, then its Mean.
std::optional<Task> AgreementTurns::next_of(Round& round) {
  if (is_guarding_) return std::nullopt;
  if (!round.has_differed) {
    round.has_differed = true;
    return make(TaskKind::Differ, round.step);
  }
  if (round.has_means || has_refused_ || !agreements_.are_differences_there(round.step)) return std::nullopt;
  round.has_means = true;
  is_guarding_ = assignment_->local->norm_bound > 0 && agreements_.takes_means(round.step);
  return make(TaskKind::Mean, round.step);
}

// All its means are there.
std::optional<Task> AgreementTurns::weigh(Round& round) {
  if (assignment_->local->norm_bound <= 0 || std::exchange(round.is_weighed, true)) return std::nullopt;
  is_guarding_ = true;
  return make(TaskKind::Weigh, round.step);
}

std::optional<Task> AgreementTurns::agree(const Round& round, bool ends) {
  Task task = make(TaskKind::Agree, round.step);
  task.ends_round = ends;
  return task;
}

std::optional<Task> AgreementTurns::next(uint64_t step, uint64_t granted) {
  if (is_guarding_) return std::nullopt;
  if (before_ && before_->is_due()) return next_of(*before_);
  const bool waits = settles(step);
  if (!waits && granted <= step) return std::nullopt;
  if (!now_) now_ = Round{step};
  if (!now_->has_differed) {
    auto differ = next_of(*now_);
    if (waits || before_) return differ;
    before_ = std::exchange(now_, std::nullopt);
    differ->ends_round = true;
    return differ;
  }
  if (!waits) {
    if (has_refused_ || !agreements_.are_means_there(before_->step)) return std::nullopt;
    if (auto task = weigh(*before_)) return task;
    const Round agreed = *std::exchange(before_, std::exchange(now_, std::nullopt));
    return agree(agreed, /*ends=*/true);
  }
  if (!now_->has_means) return next_of(*now_);
  if (has_refused_ || !agreements_.are_means_there(step)) return std::nullopt;
  if (before_ && !agreements_.are_means_there(before_->step)) return std::nullopt;
  if (auto task = before_ ? weigh(*before_) : std::nullopt) return task;
  if (auto task = weigh(*now_)) return task;
  if (before_) {
    is_agreeing_ = true;
    return agree(*std::exchange(before_, std::nullopt), /*ends=*/false);
  }
  return agree(*std::exchange(now_, std::nullopt), /*ends=*/true);
}

void AgreementTurns::on_guarded(uint64_t step, const TaskOutcome& outcome) {
  is_guarding_ = false;
  if (outcome.refused) refuse(step, *outcome.refused);
  if (const auto command = std::exchange(later_, std::nullopt)) answer(*command, /*is_over=*/false);
}

// ---- who is left out

// Of the round under way or, where that overlaps it, of the next one.
bool AgreementTurns::may_be_left_out(uint64_t step, uint64_t completed) const {
  const replicas::LocalSteps& local = assignment_->local->steps;
  const uint64_t end = next_end(local, std::min(completed + 1, last_inner_step(local)));
  return step <= end || (!agrees_after(local, end) && step == next_end(local, end + 1));
}

Status AgreementTurns::on_command(const proto::Command& command, uint64_t completed, uint64_t given) {
  const auto refused = [](const char* what) { return fail(ErrorCode::InvalidArgument, what); };
  if (settled_ && command.step != *settled_)
    return refused("replicas that end with another step than was said");
  if (command.kind == proto::CommandKind::Settle) {
    if (given >= command.step) return refused("a round that is to be waited for, and is over");
    settled_ = command.step;
    agreements_.settle(command.step);
    return {};
  }
  if (const auto& before = agreements_.left_out(); before && !command.left_out.includes(*before))
    return refused("a replica that was left out has a part again");
  if (!may_be_left_out(command.step, completed))
    return refused("replicas that are left out of an agreement that is not the next");
  if (is_guarding_)
    later_ = command;
  else
    answer(command, given >= command.step);
  return {};
}

// What is agreed on with them can be.
bool AgreementTurns::can_be_without(const replicas::LeftOut& left_out, uint64_t first) const {
  const auto is_whole = [&](const std::optional<Round>& round) {
    return !round || round->step >= first ||
           (!has_refused_ && agreements_.has_all_of(left_out.replicas, round->step, round->has_means));
  };
  return is_whole(before_) && is_whole(now_);
}

void AgreementTurns::answer(const proto::Command& command, bool is_over) {
  const replicas::LocalSteps& local = assignment_->local->steps;
  const uint64_t first = first_left_out(local, command.step);
  const auto& before = agreements_.left_out();
  auto left_out = std::make_shared<replicas::LeftOut>(command.left_out);
  left_out->attempt =
      static_cast<uint32_t>(std::count_if(left_out->replicas.begin(), left_out->replicas.end(),
                                          [&](uint32_t replica) { return !local.terms.follows(replica); }));
  // Who made no step has sent nothing: what was agreed on stays as it is.
  const bool begins_again = left_out->attempt > (before ? before->attempt : 0);
  // Differences of a fragment alone were sent for what would be about all of the model.
  const bool is_about_less = !begins_again && now_ && now_->step == command.step && now_->has_differed &&
                             !settles(command.step) && local.terms.fragments > 1;
  const bool too_late =
      is_about_less ||
      (begins_again && (is_over || is_agreeing_ || !can_be_without(command.left_out, first)));
  reports_.emplace_back(proto::ReplicasLeftOut{.run = command.run,
                                               .plan_version = command.plan_version,
                                               .step = command.step,
                                               .sequence = command.sequence,
                                               .too_late = too_late});
  // Where all have agreed with them they are only gone: nobody waits for their links any more.
  const bool are_only_gone = too_late && is_over && command.committed >= command.step;
  if (too_late && !are_only_gone) return;
  agreements_.leave_out(std::move(left_out), are_only_gone ? command.step + 1 : first);
  settled_ = command.step;
  agreements_.settle(command.step);
  if (!begins_again || are_only_gone) return;
  has_refused_ = false;
  for (std::optional<Round>* round : {&before_, &now_})
    if (*round && (*round)->step >= first) **round = Round{(*round)->step};
}

// ---- what is refused

bool AgreementTurns::refuse_not_finite(uint32_t replica, uint64_t steps_before, uint64_t completed) {
  if (!assignment_->local || assignment_->local->norm_bound <= 0) return false;
  const auto end = agreements_.end_of(steps_before, completed);
  if (end) refuse(*end, {.replica = replica});
  return end.has_value();
}

void AgreementTurns::refuse(uint64_t step, const replicas::Outlier& outlier) {
  has_refused_ = true;
  for (std::optional<Round>* round : {&before_, &now_})
    if (*round && (*round)->step == step) (*round)->has_means = false;
  reports_.emplace_back(proto::DifferenceRefused{.run = assignment_->run,
                                                 .plan_version = assignment_->plan_version,
                                                 .step = step,
                                                 .replica = outlier.replica,
                                                 .ratio = outlier.ratio});
}

}  // namespace weft::peer
