#include "broker/run/run.h"

#include <algorithm>

namespace weft::broker {

using proto::Command;
using proto::CommandKind;
using proto::JobEventKind;

namespace {
std::vector<StageClaims> claims_of(const PlannedRun& plan) {
  std::vector<StageClaims> claims;
  for (const PlannedStage& stage : plan.stages) claims.emplace_back(*stage.assignment);
  return claims;
}
}  // namespace

Run::Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
         const RunBegin& begin, RunOptions options)
    : job_(job),
      version_(version),
      plan_(std::move(plan)),
      options_(options),
      claims_(claims_of(*plan_)),
      script_(job, version),
      steps_(plan_, begin.after_step, begin.recorded),
      rounds_(job, plan_, begin, options),
      forward_(plan_, begin, options.forward_chunk),
      comparison_(*plan_, begin, options),
      repeats_until_(plan_->stages.size(), 0) {}

RunEffects Run::start(Instant now) {
  RunEffects out;
  last_progress_ = now;
  steps_.start(now);
  rounds_.start(now);
  comparison_.start(now);
  if (!training()) {
    continue_forward(out);
    end_if_done(out);
    return out;
  }
  // What belongs to the border that the run begins at, and was lost with the peers before.
  if (steps_.all_granted() && rounds_.checkpointed() < granted_step())
    write_snapshot(now, Rounds::Kind::Checkpoint, out);
  if (granted_step() != 0) evaluate_if_due(out);
  continue_run(now, out);
  return out;
}

// ---- the script

bool Run::is_settled(const Command& command) const {
  switch (command.kind) {
    case CommandKind::Advance:
      return command.step <= committed_step();
    case CommandKind::Checkpoint:
    case CommandKind::CopyState:
      return rounds_.is_settled(command.sequence);
    case CommandKind::Evaluate:
    case CommandKind::Predict:
      return forward_.is_settled(command);
    case CommandKind::Compare:
      return comparison_.is_settled(command.sequence);
    case CommandKind::Finish:
      return true;
  }
  return true;
}

void Run::trim_script() {
  script_.trim([this](const Command& command) { return is_settled(command); });
}

void Run::write(Command command, RunEffects& out) {
  trim_script();
  command.committed = committed_step();
  command.keep_from = rounds_.keep_from();
  out.push_back(IssueCommand{script_.write(command)});
}

// What was committed since the last command was recorded is not known here, and need not be: the stages keep
// their reports until a command tells them that they may forget, and report again. What the event log holds
// already is not recorded twice. Blobs that need not survive the broker have not: stages that report a round
// again have uploaded it again.
void Run::resume(const std::vector<Command>& script) {
  const Command last = script.empty() ? Command{} : script.back();
  script_.resume(script);
  steps_.resume(training() ? last.step : 0, last.committed);
  rounds_.resume(last.keep_from);
  for (const Command& command : script_.commands()) {
    rounds_.resume(command, steps_.recorded());
    comparison_.resume(command);
    forward_.resume(command);
  }
}

Result<RunEffects> Run::on_resumed(Instant now, uint32_t stage, uint64_t last_sequence) {
  WEFT_TRY_STATUS(script_.check_resumed(last_sequence));
  RunEffects out;
  if (last_progress_ == Instant{}) {
    steps_.continue_at(now);
    rounds_.start(now);
    comparison_.continue_at(now);
  }
  last_progress_ = now;
  repeats_until_[stage] = std::max<uint64_t>(1, granted_step());
  rounds_.on_resumed(stage);
  for (const Command& command : script_.commands())
    if (command.sequence > last_sequence) out.push_back(TellStage{stage, command});
  for (const Steps::Decision& decision : steps_.decisions_for(stage))
    out.push_back(TellStage{stage, norm_of(decision)});
  // All of the script may have been done when the broker went: then no report brings the run forward.
  if (training())
    continue_run(now, out);
  else
    continue_forward(out);
  end_if_done(out);
  return out;
}

// Whether a report that says nothing new comes from a stage that could not know; counted.
bool Run::drop_repeat(uint32_t stage, uint64_t step) {
  if (!may_repeat(stage, step)) return false;
  ++repeats_;
  return true;
}

// ---- going on

// What may follow from anything that came in.
void Run::continue_run(Instant now, RunEffects& out) {
  commit_steps(now, out);
  if (auto evaluation = forward_.finish(committed_step())) out.push_back(SayEvent{std::move(*evaluation)});
  complete_rounds(now, out);
  advance(now, out);
  end_if_done(out);
}

RunEffects Run::go_on(Instant now) {
  RunEffects out;
  continue_run(now, out);
  return out;
}

void Run::commit_steps(Instant now, RunEffects& out) {
  for (auto next = steps_.next_done(); next && !rounds_.is_gated(*next); next = steps_.next_done()) {
    Steps::Committed committed = steps_.commit(now);
    if (committed.is_repeat)
      out.push_back(RepeatedStep{committed.event.step, committed.event.loss});
    else
      out.push_back(SayEvent{std::move(committed.event)});
    if (!committed.divergence) continue;
    ended_ = true;
    out.push_back(std::move(*committed.divergence));
    return;
  }
}

void Run::complete_rounds(Instant now, RunEffects& out) {
  Rounds::Completed completed = rounds_.complete(now, committed_step(), moving_);
  for (size_t i = 0; i < completed.dropped; ++i) out.push_back(DirectCopyChanged{});
  for (WholeSnapshot& whole : completed.whole) {
    proto::JobEvent event;
    event.kind = JobEventKind::Checkpoint;
    event.step = whole.snapshot.step;
    const bool is_said = whole.is_durable;
    out.push_back(std::move(whole));
    if (is_said) out.push_back(SayEvent{std::move(event)});
  }
}

// The first step after the last granted one at which something else than the next step happens.
uint64_t Run::next_border() const {
  const uint64_t granted = granted_step();
  const dag::Borders& borders = plan_->borders;
  uint64_t border = steps();
  const auto multiple_after = [&](uint64_t every) { return (granted / every + 1) * every; };
  if (borders.evaluate_every != 0 && plan_->forward_microbatches != 0)
    border = std::min(border, multiple_after(borders.evaluate_every));
  if (borders.checkpoint.steps) border = std::min(border, multiple_after(*borders.checkpoint.steps));
  if (const auto copy = rounds_.next_copy(granted)) border = std::min(border, std::max(granted + 1, *copy));
  return border;
}

void Run::grant(Instant now, uint64_t step, RunEffects& out) {
  steps_.grant(now, step);
  write({.kind = CommandKind::Advance, .step = step}, out);
}

void Run::advance(Instant now, RunEffects& out) {
  if (!training()) return;
  trim_script();
  while (!stopping_ && !ended_ && !forward_.is_active()) {
    write_snapshot_if_due(now, out);
    write_comparison_if_due(now, out);
    const uint64_t target = std::min(next_border(), committed_step() + options_.window_steps);
    if (steps_.all_granted() || target <= granted_step() || script_.commands().size() >= options_.script_max)
      return;
    grant(now, target, out);
    write_snapshot_if_due(now, out);
    evaluate_if_due(out);
  }
}

void Run::write_snapshot(Instant now, Rounds::Kind kind, RunEffects& out) {
  write(rounds_.write(now, kind,
                      {.sequence = script_.next_sequence(),
                       .granted = granted_step(),
                       .committed = committed_step(),
                       .may_be_direct = copies_go_direct_ && !stopping_}),
        out);
}

void Run::write_snapshot_if_due(Instant now, RunEffects& out) {
  if (const auto kind = rounds_.due(granted_step())) write_snapshot(now, *kind, out);
}

void Run::write_last_snapshot(Instant now, RunEffects& out) {
  const Rounds::Last needed = rounds_.last_needed(granted_step(), moving_);
  if (needed == Rounds::Last::IsWritten) return;
  if (needed == Rounds::Last::AfterAnother) grant(now, granted_step() + 1, out);
  write_snapshot(now, Rounds::Kind::Checkpoint, out);
}

void Run::write_comparison_if_due(Instant now, RunEffects& out) {
  if (steps_.all_granted() || !comparison_.is_due(now, committed_step(), pace().step_seconds())) return;
  write(comparison_.write(now, script_.next_sequence(), granted_step()), out);
}

void Run::evaluate_if_due(RunEffects& out) {
  if (!forward_.is_due(granted_step())) return;
  forward_.begin_evaluation(granted_step());
  continue_forward(out);
}

void Run::continue_forward(RunEffects& out) {
  while (!stopping_) {
    const auto command = forward_.next();
    if (!command) return;
    write(*command, out);
  }
}

RunEffects Run::request_stop(Instant now, bool to_go_on) {
  RunEffects out;
  if (ended_ || (stopping_ && (to_go_on || !moving_))) return out;
  moving_ = to_go_on;
  stopping_ = true;
  if (training()) write_last_snapshot(now, out);
  end_if_done(out);
  return out;
}

void Run::end_if_done(RunEffects& out) {
  if (ended_ || !rounds_.is_idle()) return;
  const bool is_complete = training() ? !comparison_.is_under_way() && committed_step() == steps() &&
                                            rounds_.checkpointed() == steps() && !forward_.is_active()
                                      : !serves() && forward_.is_complete();
  if (is_complete) {
    ended_ = true;
    proto::JobEvent event;
    event.kind = JobEventKind::Result;
    event.step = committed_step();
    event.metrics = metrics();
    event.samples = training() ? 0 : plan_->forward_samples;
    out.push_back(SayEvent{std::move(event)});
    out.push_back(Finished{committed_step()});
  } else if (stopping_ &&
             (!training() || (rounds_.has_last(granted_step(), moving_) &&
                              committed_step() == granted_step() && !comparison_.is_under_way()))) {
    ended_ = true;
    out.push_back(Stopped{committed_step()});
  }
}

RunEffects Run::on_tick(Instant now) {
  RunEffects out;
  if (ended_ || !training()) return out;
  if (rounds_.take_retry(now) && (stopping_ || steps_.all_granted())) write_last_snapshot(now, out);
  if (const auto step = rounds_.unfetched(now))
    give_up_direct(now, {ErrorCode::Timeout, "nobody has fetched that of step " + std::to_string(*step)},
                   out);
  if (ended_ || stopping_ || !rounds_.ask_for_checkpoint(now, granted_step())) return out;
  // An evaluation goes first: one may always be ahead.
  if (!forward_.is_active()) write_snapshot_if_due(now, out);
  return out;
}

// ---- direct copies

RunEffects Run::on_fetched(Instant now, uint32_t stage, uint64_t step) {
  RunEffects out;
  if (ended_ || !rounds_.on_fetched(now, stage, step)) return out;
  last_progress_ = now;
  continue_run(now, out);
  out.push_back(DirectCopyChanged{});
  return out;
}

RunEffects Run::drop_direct(Instant now) {
  RunEffects out;
  drop_direct(now, out);
  return out;
}
void Run::drop_direct(Instant now, RunEffects& out) {
  if (!ended_ && rounds_.drop_direct()) continue_run(now, out);
}

RunEffects Run::give_up_direct(Instant now, const Error& why) {
  RunEffects out;
  give_up_direct(now, why, out);
  return out;
}
void Run::give_up_direct(Instant now, const Error& why, RunEffects& out) {
  if (ended_ || rounds_.has_given_up_direct()) return;
  if (rounds_.give_up_direct(why)) {
    copies_go_direct_ = false;
    out.push_back(DirectCopiesFailed{why.message});
  }
  drop_direct(now, out);
}

// ---- what is known

std::optional<Duration> Run::comparing() const {
  if (!comparison_.is_under_way()) return std::nullopt;
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>(comparison_.cost(pace().step_seconds())));
}

MissingReports Run::missing_reports() const {
  MissingReports missing = steps_.missing_reports();
  return missing.stages.empty() ? rounds_.missing_reports() : missing;
}

Status Run::check() const {
  WEFT_TRY_STATUS(script_.check());
  WEFT_TRY_STATUS(steps_.check());
  WEFT_TRY_STATUS(rounds_.check(committed_step(), granted_step()));
  WEFT_TRY_STATUS(forward_.check());
  WEFT_TRY_STATUS(comparison_.check(granted_step()));
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Internal, "run: " + what); };
  // After a restart nobody would know of it.
  std::vector<uint64_t> under_way = rounds_.under_way();
  if (const auto comparison = comparison_.under_way()) under_way.push_back(*comparison);
  for (const uint64_t sequence : under_way)
    if (!script_.has(sequence))
      return broken("what is under way by command " + std::to_string(sequence) + " is not in the script");
  if (moving_ && !stopping_) return broken("it moves and does not stop");
  if (ended_) return {};
  if (const auto step = steps_.next_done(); step && !rounds_.is_gated(*step))
    return broken("step " + std::to_string(*step) + " is done and not committed");
  if (rounds_.has_whole(committed_step())) return broken("a snapshot is whole and not taken");
  return {};
}

}  // namespace weft::broker
