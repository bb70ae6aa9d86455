#include "broker/run/run_commands.h"

#include <algorithm>
#include <string>
#include <utility>

#include "replicas/agreements_kept.h"

namespace weft::broker {

using proto::Command;
using proto::CommandKind;

namespace {
constexpr uint32_t kEvaluates = 0;  // the replica whose stages do
}  // namespace

uint64_t next_border(const PlannedRun& plan, uint64_t granted, std::optional<uint64_t> next_copy) {
  const dag::Borders& borders = plan.borders;
  uint64_t border = plan.training.steps;
  if (const InnerSteps inner(plan); inner.are_local()) return std::min(border, inner.next_whole(granted + 1));
  const auto multiple_after = [&](uint64_t every) { return (granted / every + 1) * every; };
  if (borders.evaluate_every != 0 && plan.forward_microbatches != 0)
    border = std::min(border, multiple_after(borders.evaluate_every));
  if (borders.checkpoint.steps) border = std::min(border, multiple_after(*borders.checkpoint.steps));
  if (next_copy) border = std::min(border, std::max(granted + 1, *next_copy));
  return border;
}

Commands::Commands(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
                   const RunOptions& options, Parts parts)
    : plan_(std::move(plan)), inner_(*plan_), options_(options), parts_(parts), script_(job, version) {}

void Commands::resume(const std::vector<Command>& recorded) {
  const Command last = recorded.empty() ? Command{} : recorded.back();
  script_.resume(recorded);
  parts_.steps.resume(plan_->training.steps != 0 ? last.step : 0, last.committed);
  parts_.rounds.resume(last.keep_from);
  for (const Command& command : script_.commands()) {
    parts_.rounds.resume(command, parts_.steps.recorded());
    parts_.comparison.resume(command);
    parts_.mean_checks.begin(command);
    parts_.forward.resume(command);
    if (command.kind == CommandKind::LeaveOut) parts_.absence.begin(command);
    if (command.kind == CommandKind::LeaveOut && command.committed < command.step &&
        command.left_out.has(kEvaluates))
      parts_.forward.give_up(command.step);
    if (command.kind == CommandKind::LeaveOut || command.kind == CommandKind::Settle) settled_ = command.step;
  }
  if (!settled_) return;
  stop();
  if (parts_.absence.empty()) return;
  parts_.rounds.leave_out();
  parts_.mean_checks.give_up();
  for (const uint32_t replica : parts_.absence.replicas()) parts_.steps.leave_out(replica);
}

bool Commands::is_settled(const Command& command) const {
  switch (command.kind) {
    case CommandKind::Advance:
      return command.step <= parts_.steps.committed();
    case CommandKind::Checkpoint:
    case CommandKind::CopyState:
      return parts_.rounds.is_settled(command.sequence);
    case CommandKind::Evaluate:
    case CommandKind::Predict:
      return parts_.forward.is_settled(command);
    case CommandKind::Compare:
      return parts_.comparison.is_settled(command.sequence);
    case CommandKind::LeaveOut:
      return parts_.absence.is_settled(command.sequence);
    case CommandKind::CheckMean:
      return parts_.mean_checks.is_settled(command.sequence);
    case CommandKind::Settle:
      return false;  // to the run's end, so that a broker that is restarted knows of it
    case CommandKind::Finish:
      return true;
  }
  return true;
}

void Commands::trim() {
  script_.trim([this](const Command& command) { return is_settled(command); });
}

void Commands::write(Command command, RunEffects& out) {
  trim();
  command.committed = parts_.steps.committed();
  command.keep_from = parts_.rounds.keep_from();
  out.push_back(IssueCommand{script_.write(command)});
}

void Commands::grant(Instant now, uint64_t step, RunEffects& out) {
  parts_.steps.grant(now, step);
  write({.kind = CommandKind::Advance, .step = step}, out);
}

void Commands::advance(Instant now, RunEffects& out) {
  trim();
  while (!stopped_ && !parts_.forward.is_active()) {
    write_snapshot_if_due(now, out);
    write_comparison_if_due(now, out);
    const uint64_t granted = parts_.steps.granted();
    const uint64_t border =
        inner_.are_local() ? local_border() : next_border(*plan_, granted, parts_.rounds.next_copy(granted));
    // Where rounds overlap one ends once more is granted.
    const uint64_t window = std::max<uint64_t>(options_.window_steps, inner_.are_local() ? 2 : 1);
    const uint64_t target = std::min(border, parts_.steps.committed() + window);
    if (parts_.steps.all_granted() || target <= granted || script_.commands().size() >= options_.script_max)
      return;
    grant(now, target, out);
    write_snapshot_if_due(now, out);
    evaluate_if_due(out);
  }
}

void Commands::write_snapshot(Instant now, Rounds::Kind kind, RunEffects& out) {
  write(parts_.rounds.write(now, kind,
                            {.sequence = script_.next_sequence(),
                             .granted = parts_.steps.granted(),
                             .committed = parts_.steps.committed(),
                             .may_be_direct = copies_go_direct_ && !stopped_}),
        out);
}

void Commands::write_snapshot_if_due(Instant now, RunEffects& out) {
  if (const auto kind = parts_.rounds.due(parts_.steps.granted())) write_snapshot(now, *kind, out);
}

void Commands::write_last_snapshot(Instant now, bool moving, RunEffects& out) {
  // What fixed replicas compute depends on nobody's moving.
  grant_until_whole(now, parts_.steps.granted(), !moving || plan_->replicas_max > 0, out);
  const uint64_t granted = parts_.steps.granted();
  const Rounds::Last needed = parts_.rounds.last_needed(granted, moving);
  if (needed == Rounds::Last::IsWritten) return;
  if (needed == Rounds::Last::AfterAnother) {
    if (settled_ || !parts_.absence.empty())
      return;  // nobody makes another round: the run goes back, once it has stalled
    grant_until_whole(now, granted + 1, /*may_settle=*/false, out);
  }
  const bool stays = moving && parts_.rounds.do_stay();
  write_snapshot(now, stays ? Rounds::Kind::Copy : Rounds::Kind::Checkpoint, out);
}

// As far as all have the same weights again, from that step on; at the end of the round, if they are told to
// wait for what is agreed about it.
void Commands::grant_until_whole(Instant now, uint64_t step, bool may_settle, RunEffects& out) {
  const uint64_t whole = next_whole(step), end = inner_.next_end(step);
  const bool settles = may_settle && end < whole;
  const uint64_t last = settles ? end : whole;
  if (last > parts_.steps.granted()) grant(now, last, out);
  if (!settles) return;
  write({.kind = CommandKind::Settle, .step = last}, out);
  settled_ = last;
}

uint64_t Commands::next_whole(uint64_t step) const {
  return settled_ && step <= *settled_ ? *settled_ : inner_.next_whole(step);
}

uint64_t Commands::next_agreement() const {
  const uint64_t committed = parts_.steps.committed();
  return next_whole(std::min(committed + 1, plan_->training.steps));
}

// Not past an agreement that is not committed: until then somebody may be left out of it, and then nobody has
// begun what comes after it. Nor past a round's end before all are at its last step: whoever is lost then has
// a part in that round's agreement and in the one before, and in no other that is not over.
uint64_t Commands::local_border() const {
  const uint64_t next = parts_.steps.committed() + 1, agreement = next_agreement();
  const uint64_t end = inner_.next_end(std::min(next, plan_->training.steps));
  if (next < end) return end;
  return std::min(agreement, inner_.next_end(std::min(end + 1, plan_->training.steps)));
}

bool Commands::have_agreed() const {
  const uint64_t granted = parts_.steps.granted();
  return next_whole(granted) == granted && parts_.steps.committed() == granted;
}

bool Commands::leave_out(Instant now, uint32_t replica, RunEffects& out) {
  const bool agreed = have_agreed();
  const uint64_t last = std::max(parts_.steps.granted(), parts_.steps.committed() + 1);
  const uint64_t step = agreed ? parts_.steps.granted() : settled_.value_or(inner_.next_end(last));
  // Elsewhere a run whose copies are whole comes to the same bits whoever is lost.
  const bool may_differ = plan_->replicas_max > 0 || parts_.rounds.do_stay();
  if (!may_differ || !parts_.absence.can_be_without(replica) || parts_.comparison.is_under_way() ||
      !parts_.rounds.can_leave_out(step) ||
      parts_.rounds.last_needed(step, /*moving=*/true) == Rounds::Last::AfterAnother)
    return false;
  const auto left_out = agreed ? std::nullopt : parts_.absence.without(replica, step);
  if (agreed ? step == plan_->training.steps : !left_out) return false;
  stop();
  if (agreed && inner_.is_begun_at(step))
    parts_.absence.begin(replica, step);
  else
    tell_left_out(now, step, agreed ? parts_.absence.after_agreement(replica) : *left_out, out);
  parts_.steps.leave_out(replica);
  parts_.rounds.leave_out();
  parts_.mean_checks.give_up();
  write_last_snapshot(now, /*moving=*/true, out);
  return true;
}

void Commands::tell_left_out(Instant now, uint64_t step, const replicas::LeftOut& left_out, RunEffects& out) {
  if (step > parts_.steps.granted()) grant(now, step, out);
  write({.kind = CommandKind::LeaveOut, .step = step, .left_out = left_out}, out);
  settled_ = step;
  parts_.absence.begin(script_.commands().back());
  const bool agreed = parts_.steps.committed() >= step;
  if (!agreed && left_out.has(kEvaluates)) parts_.forward.give_up(step);
}

void Commands::write_comparison_if_due(Instant now, RunEffects& out) {
  const double step_seconds = parts_.rounds.pace().step_seconds();
  if (parts_.steps.all_granted() || !parts_.comparison.is_due(now, parts_.steps.committed(), step_seconds))
    return;
  write(parts_.comparison.write(now, script_.next_sequence(), parts_.steps.granted()), out);
}

void Commands::evaluate_if_due(RunEffects& out) {
  if (!parts_.forward.is_due(parts_.steps.granted())) return;
  parts_.forward.begin_evaluation(parts_.steps.granted());
  continue_forward(out);
}

namespace {

// A stage shows what it has of a mean once it has done all that is granted, and of the last agreements alone.
// A run that moves may have granted several rounds up to the one that settles.
bool is_kept(const InnerSteps& inner, uint64_t agreement, uint64_t granted, std::optional<uint64_t> settled) {
  const replicas::ReplicaTerms& terms = inner.local()->terms;
  if (!terms.overlap()) return agreement == granted;  // behind it another round begins
  const uint64_t kept = agreements_kept(terms);
  uint64_t later = 0;
  for (uint64_t end = agreement; end < granted && later < kept;) {
    end = inner.next_end(end + 1);
    const bool is_over = end <= granted && (inner.is_agreed(end, granted) || settled == granted);
    later += is_over ? 1 : 0;
  }
  return later < kept;
}

}  // namespace

void Commands::check_means(uint64_t step, RunEffects& out) {
  if (!parts_.absence.empty()) return;
  for (const proto::MeanCheck& check : parts_.mean_checks.draw(step, settled_)) {
    if (!is_kept(inner_, check.agreement, parts_.steps.granted(), settled_)) continue;
    write({.kind = CommandKind::CheckMean, .step = parts_.steps.granted(), .check = check}, out);
    parts_.mean_checks.begin(script_.commands().back());
  }
}

void Commands::continue_forward(RunEffects& out) {
  while (!stopped_) {
    const auto command = parts_.forward.next();
    if (!command) return;
    write(*command, out);
  }
}

bool Commands::are_complete() const {
  const uint64_t steps = plan_->training.steps;
  return parts_.absence.steps_lost() == 0 && !parts_.comparison.is_under_way() &&
         parts_.steps.committed() == steps && parts_.rounds.checkpointed() == steps &&
         !parts_.forward.is_active();
}

bool Commands::have_ended(bool moving) const {
  const uint64_t granted = parts_.steps.granted();
  return stopped_ && parts_.rounds.has_last(granted, moving) && parts_.steps.committed() == granted &&
         !parts_.comparison.is_under_way();
}

Status Commands::check() const {
  WEFT_TRY_STATUS(parts_.steps.check());
  WEFT_TRY_STATUS(parts_.rounds.check(parts_.steps.committed(), parts_.steps.granted()));
  WEFT_TRY_STATUS(parts_.forward.check());
  WEFT_TRY_STATUS(parts_.comparison.check(parts_.steps.granted()));
  WEFT_TRY_STATUS(script_.check());
  // After a restart nobody would know of it.
  std::vector<uint64_t> under_way = parts_.rounds.under_way().sequences();
  if (const auto comparison = parts_.comparison.under_way()) under_way.push_back(*comparison);
  for (const uint64_t sequence : under_way)
    if (!script_.has(sequence))
      return fail(ErrorCode::Internal,
                  "run: what is under way by command " + std::to_string(sequence) + " is not in the script");
  return {};
}

}  // namespace weft::broker
