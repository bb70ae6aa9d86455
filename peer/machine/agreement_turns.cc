#include "peer/machine/agreement_turns.h"

namespace weft::peer {

std::optional<Task> AgreementTurns::next(uint64_t step) {
  const TaskKind next = !last_                      ? TaskKind::Differ
                        : last_ == TaskKind::Differ ? TaskKind::Mean
                                                    : TaskKind::Agree;
  if (is_taking_means_ || (has_refused_ && next == TaskKind::Mean)) return std::nullopt;
  if (next == TaskKind::Mean && !agreements_.are_differences_there(step)) return std::nullopt;
  if (next == TaskKind::Agree && !agreements_.are_means_there(step)) return std::nullopt;
  last_ = next == TaskKind::Agree ? std::nullopt : std::optional(next);
  is_taking_means_ =
      next == TaskKind::Mean && assignment_->local->norm_bound > 0 && agreements_.takes_means();
  return Task{.kind = next, .key = {proto::ProgramKind::Agree, step, 0}, .left_out = agreements_.left_out()};
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
  const replicas::LocalSteps& local = assignment_->local->steps;
  if (completed >= last_inner_step(local)) return false;
  const uint64_t step = next_agreement(local, completed + 1);
  if (round_of(local, step).steps_before != steps_before) return false;  // of another round
  refuse(step, {.replica = replica});
  return true;
}

void AgreementTurns::refuse(uint64_t step, const replicas::Outlier& outlier) {
  has_refused_ = true;
  if (last_ == TaskKind::Mean) last_ = TaskKind::Differ;
  reports_.emplace_back(proto::DifferenceRefused{.run = assignment_->run,
                                                 .plan_version = assignment_->plan_version,
                                                 .step = step,
                                                 .replica = outlier.replica,
                                                 .ratio = outlier.ratio});
}

}  // namespace weft::peer
