#include "broker/run/run.h"

#include <algorithm>

namespace weft::broker {

using proto::Command;
using proto::JobEventKind;

namespace {
std::vector<StageClaims> claims_of(const PlannedRun& plan) {
  std::vector<StageClaims> claims;
  claims.reserve(plan.stages.size());
  for (const PlannedStage& stage : plan.stages) claims.emplace_back(*stage.assignment);
  return claims;
}

void append(RunEffects& out, RunEffects effects) {
  for (RunEffect& effect : effects) out.push_back(std::move(effect));
}

void add_completed(Rounds::Completed completed, RunEffects& out) {
  for (size_t i = 0; i < completed.dropped; ++i) out.push_back(DirectCopyChanged{});
  for (WholeSnapshot& whole : completed.whole) {
    proto::JobEvent event;
    event.kind = JobEventKind::Checkpoint;
    event.step = whole.snapshot.made();
    const bool is_said = whole.is_durable;
    out.push_back(std::move(whole));
    if (is_said) out.push_back(SayEvent{std::move(event)});
  }
}

proto::JobEvent result_of(uint64_t step, std::map<std::string, double> metrics, uint64_t samples) {
  proto::JobEvent event;
  event.kind = JobEventKind::Result;
  event.step = step;
  event.metrics = std::move(metrics);
  event.samples = samples;
  return event;
}
}  // namespace

Run::Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
         const RunBegin& begin, const RunOptions& options)
    : job_(job),
      version_(version),
      plan_(std::move(plan)),
      inner_(*plan_),
      claims_(claims_of(*plan_)),
      steps_(plan_, begin.after_step, begin.recorded),
      absence_(plan_),
      followers_(*plan_),
      lateness_(*plan_),
      rounds_(job, plan_, begin, options, absence_, followers_),
      forward_(plan_, begin, options.forward_chunk),
      comparison_(*plan_, begin, options),
      mean_checks_(plan_, options.mean_checks),
      commands_(job, version, plan_, options,
                {steps_, rounds_, forward_, comparison_, mean_checks_, absence_}),
      repeats_(plan_->stages.size()) {}

RunEffects Run::start(Instant now) {
  RunEffects out;
  last_progress_ = now;
  steps_.start(now);
  rounds_.start(now);
  comparison_.start(now);
  if (!training()) {
    commands_.continue_forward(out);
    end_if_done(out);
    return out;
  }
  // What belongs to the border that the run begins at, and was lost with the peers before.
  if (steps_.all_granted() && rounds_.checkpointed() < granted_step()) commands_.write_checkpoint(now, out);
  if (granted_step() != 0) commands_.evaluate_if_due(out);
  continue_run(now, out);
  return out;
}

// ---- after a restart

// What was committed since the last command was recorded is not known here, and need not be: the stages keep
// their reports until a command tells them that they may forget, and report again. What the event log holds
// already is not recorded twice. Blobs that need not survive the broker have not: stages that report a round
// again have uploaded it again.
void Run::resume(const std::vector<Command>& script) {
  commands_.resume(script);
  moving_ = commands_.settled().has_value();
  if (!absence_.empty()) absence_.take_over(claims_);
}

Result<RunEffects> Run::on_resumed(Instant now, uint32_t stage, uint64_t last_sequence) {
  WEFT_TRY_STATUS(commands_.script().check_resumed(last_sequence));
  RunEffects out;
  if (last_progress_ == Instant{}) {
    steps_.continue_at(now);
    rounds_.start(now);
    comparison_.continue_at(now);
  }
  last_progress_ = now;
  repeats_.on_resumed(stage, granted_step());
  rounds_.on_resumed(stage);
  absence_.on_resumed(stage);
  for (Command& command : commands_.script().commands_after(last_sequence))
    out.push_back(TellStage{stage, std::move(command)});
  for (const Steps::Decision& decision : steps_.decisions_for(stage))
    out.push_back(tell_norm(stage, decision));
  // All of the script may have been done when the broker went: then no report brings the run forward.
  if (training())
    continue_run(now, out);
  else
    commands_.continue_forward(out);
  end_if_done(out);
  return out;
}

// ---- going on

// What may follow from anything that came in.
void Run::continue_run(Instant now, RunEffects& out) {
  commit_steps(now, out);
  if (auto evaluation = forward_.finish(sure_step())) out.push_back(SayEvent{std::move(*evaluation)});
  add_completed(rounds_.complete(now, sure_step(), moving_), out);
  if (training() && !ended_) commands_.advance(now, out);
  end_if_done(out);
}

RunEffects Run::go_on(Instant now) {
  RunEffects out;
  continue_run(now, out);
  return out;
}

void Run::commit_steps(Instant now, RunEffects& out) {
  for (auto next = steps_.next_done(); next && !is_gated(*next); next = steps_.next_done()) {
    Steps::Committed committed = steps_.commit(now);
    if (committed.event && committed.is_repeat)
      out.push_back(RepeatedStep{committed.event->step, committed.event->loss});
    else if (committed.event)
      out.push_back(SayEvent{std::move(*committed.event)});
    commands_.check_means(*next, out);
    if (!committed.divergence) continue;
    ended_ = true;
    return out.push_back(std::move(*committed.divergence));
  }
}

RunEffects Run::request_stop(Instant now, bool to_go_on) {
  RunEffects out;
  if (ended_ || (commands_.are_stopped() && (to_go_on || !moving_))) return out;
  if (!absence_.empty() || (moving_ && commands_.settled().has_value()))
    return out;  // it stops where they agree
  moving_ = to_go_on;
  commands_.stop();
  if (training()) commands_.write_last_snapshot(now, moving_, out);
  end_if_done(out);
  return out;
}

void Run::end_if_done(RunEffects& out) {
  if (ended_ || !rounds_.is_idle() || !mean_checks_.empty()) return;
  const bool is_complete = training() ? commands_.are_complete() : !serves() && forward_.is_complete();
  if (is_complete) {
    ended_ = true;
    out.push_back(SayEvent{
        result_of(inner_.made(committed_step()), metrics(), training() ? 0 : plan_->forward_samples)});
    out.push_back(Finished{inner_.made(committed_step())});
  } else if (training() ? commands_.have_ended(moving_) : commands_.are_stopped()) {
    ended_ = true;
    out.push_back(Stopped{inner_.made(committed_step()) - absence_.steps_lost()});
  }
}

// ---- replicas that are lost

std::optional<RunEffects> Run::leave_out(Instant now, uint32_t replica) {
  RunEffects out;
  const bool is_stopping = commands_.are_stopped() && !moving_;
  if (ended_ || !training() || is_stopping || !commands_.leave_out(now, replica, out)) return std::nullopt;
  moving_ = true;
  last_progress_ = now;
  absence_.take_over(claims_);
  continue_run(now, out);
  return out;
}

// Snapshots, or stages that have yet to say whether they left others out.
bool Run::is_gated(uint64_t step) const { return rounds_.under_way().is_gated(step) || absence_.holds(step); }

RunEffects Run::on_tick(Instant now) {
  RunEffects out;
  if (ended_ || !training()) return out;
  lateness_.look(now, steps_, absence_);
  if (rounds_.take_retry(now) && (commands_.are_stopped() || steps_.all_granted()))
    commands_.write_last_snapshot(now, moving_, out);
  if (const auto step = rounds_.unfetched(now))
    append(out, give_up_direct(now, {ErrorCode::Timeout, "nobody has fetched that of step " +
                                                             std::to_string(inner_.made(*step))}));
  if (ended_ || commands_.are_stopped() || !rounds_.ask_for_checkpoint(now, granted_step())) return out;
  // An evaluation goes first: one may always be ahead.
  if (!forward_.is_active()) commands_.write_snapshot_if_due(now, out);
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
  if (!ended_ && rounds_.drop_direct()) continue_run(now, out);
  return out;
}

RunEffects Run::give_up_direct(Instant now, const Error& why) {
  RunEffects out;
  if (ended_ || rounds_.has_given_up_direct()) return out;
  if (rounds_.give_up_direct(why)) {
    commands_.let_copies_go_direct(false);
    out.push_back(DirectCopiesFailed{why.message});
  }
  append(out, drop_direct(now));
  return out;
}

// ---- what is known

bool Run::waits_for_agreement() const {
  return committed_step() < granted_step() && inner_.ends_round(committed_step() + 1);
}

MissingReports Run::missing_reports() const {
  MissingReports missing = steps_.missing_reports();
  if (missing.stages.empty()) missing = rounds_.under_way().missing_reports();
  return missing.stages.empty() ? mean_checks_.missing_reports() : missing;
}

Status Run::check() const {
  WEFT_TRY_STATUS(commands_.check());
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Internal, "run: " + what); };
  if (moving_ && !commands_.are_stopped()) return broken("it moves and does not stop");
  if (ended_) return {};
  if (const auto step = steps_.next_done(); step && !is_gated(*step))
    return broken("step " + std::to_string(*step) + " is done and not committed");
  if (rounds_.under_way().has_whole(sure_step())) return broken("a snapshot is whole and not taken");
  return {};
}

}  // namespace weft::broker
