#include "peer/machine/agreement_turns.h"

namespace weft::peer {

Task AgreementTurns::make(TaskKind kind, uint64_t step) const {
  return {.kind = kind, .key = {proto::ProgramKind::Agree, step, 0}, .left_out = agreements_.left_out()};
}

Task AgreementTurns::end_round(Task task) {
  last_.reset();
  task.ends_round = true;
  return task;
}

std::optional<Task> AgreementTurns::take_means(uint64_t step) {
  if (has_refused_ || !agreements_.are_differences_there(step)) return std::nullopt;
  is_taking_means_ = assignment_->local->norm_bound > 0 && agreements_.takes_means();
  return make(TaskKind::Mean, step);
}

std::optional<Task> AgreementTurns::next_mean() {
  if (!overlapped_ || overlapped_->has_means || is_taking_means_) return std::nullopt;
  auto task = take_means(overlapped_->step);
  overlapped_->has_means = task.has_value();
  return task;
}

std::optional<Task> AgreementTurns::next(uint64_t step) {
  if (is_taking_means_) return std::nullopt;
  if (overlapped_ && !overlapped_->has_means) return next_mean();
  if (!last_) {
    Task differ = make(TaskKind::Differ, step);
    last_ = TaskKind::Differ;
    if (overlapped_ || !overlaps(step)) return differ;
    overlapped_ = Overlapped{step};
    return end_round(differ);
  }
  if (overlapped_) {
    if (!agreements_.are_means_there(overlapped_->step)) return std::nullopt;
    Task agree = make(TaskKind::Agree, std::exchange(overlapped_, std::nullopt)->step);
    if (!overlaps(step)) return agree;
    overlapped_ = Overlapped{step};
    return end_round(agree);
  }
  if (last_ == TaskKind::Mean)
    return agreements_.are_means_there(step) ? std::optional(end_round(make(TaskKind::Agree, step)))
                                             : std::nullopt;
  auto mean = take_means(step);
  if (mean) last_ = TaskKind::Mean;
  return mean;
}

void AgreementTurns::on_mean_done(uint64_t step, const TaskOutcome& outcome) {
  is_taking_means_ = false;
  if (outcome.refused) refuse(step, *outcome.refused);
  if (const auto command = std::exchange(later_, std::nullopt)) answer(*command, /*is_over=*/false);
}

Status AgreementTurns::leave_out(const proto::Command& command, uint64_t completed, uint64_t given) {
  const auto refused = [](const char* what) { return fail(ErrorCode::InvalidArgument, what); };
  if (const auto& before = agreements_.left_out(); before && !command.left_out.includes(*before))
    return refused("a replica that was left out has a part again");
  if (next_agreement(assignment_->local->steps, completed + 1) < command.step)
    return refused("replicas that are left out of an agreement that is not the next");
  if (is_taking_means_)
    later_ = command;
  else
    answer(command, given >= command.step);
  return {};
}

void AgreementTurns::answer(const proto::Command& command, bool is_over) {
  const bool too_late = is_over || (last_ == TaskKind::Mean && agreements_.takes_means());
  reports_.emplace_back(proto::ReplicasLeftOut{.run = command.run,
                                               .plan_version = command.plan_version,
                                               .step = command.step,
                                               .sequence = command.sequence,
                                               .too_late = too_late});
  if (too_late) return;
  agreements_.leave_out(std::make_shared<const replicas::LeftOut>(command.left_out));
  has_refused_ = false;
  last_.reset();
}

bool AgreementTurns::refuse_not_finite(uint32_t replica, uint64_t steps_before, uint64_t completed) {
  if (!assignment_->local || assignment_->local->norm_bound <= 0) return false;
  const auto end = agreements_.end_of(steps_before, completed);
  if (end) refuse(*end, {.replica = replica});
  return end.has_value();
}

void AgreementTurns::refuse(uint64_t step, const replicas::Outlier& outlier) {
  has_refused_ = true;
  if (overlapped_ && overlapped_->step == step) overlapped_->has_means = false;
  if (last_ == TaskKind::Mean) last_ = TaskKind::Differ;
  reports_.emplace_back(proto::DifferenceRefused{.run = assignment_->run,
                                                 .plan_version = assignment_->plan_version,
                                                 .step = step,
                                                 .replica = outlier.replica,
                                                 .ratio = outlier.ratio});
}

}  // namespace weft::peer
