#include "broker/run.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::broker {

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
         RunBegin begin, RunOptions options)
    : job_(job),
      version_(version),
      plan_(std::move(plan)),
      claims_(claims_of(*plan_)),
      options_(options),
      largest_bytes_(largest_state_bytes(*plan_)),
      copy_seconds_(slowest_copy_seconds(*plan_, options_.replication_rate)),
      granted_(begin.after_step),
      committed_(begin.after_step),
      recorded_(begin.recorded),
      evaluated_(begin.evaluated),
      checkpointed_(begin.checkpointed),
      recovery_(begin.after_step),
      keep_from_(begin.after_step),
      snapshot_written_(begin.after_step),
      snapshot_written_durable_(begin.after_step == begin.checkpointed),
      codec_ratio_(codec_ratio(*plan_)),
      begun_after_(begin.after_step),
      metrics_(std::move(begin.metrics)) {
  stages_.resize(plan_->stages.size());
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    stages_[s].seat = plan_->stages[s].assignment->seat;
    stages_[s].peer = plan_->stages[s].peer;
    stages_[s].step = begin.after_step;
  }
  repeats_until_.assign(stages_.size(), 0);
  if (!training()) begin_prediction(begin);
}

void Run::start(Instant now, RunSink& sink) {
  last_checkpoint_ = last_commit_ = last_progress_ = last_updated_ = compared_at_ = now;
  if (!training()) {
    continue_forward(sink);
    return end_if_done(sink);
  }
  // What belongs to the border that the run begins at, and was lost with the peers before.
  if (granted_ == plan_->training.steps && checkpointed_ < granted_) write_snapshot(now, true, sink);
  if (granted_ != 0 && evaluation_is_due(granted_)) {
    begin_evaluation(granted_);
    continue_forward(sink);
  }
  continue_run(now, sink);
}

// What may follow from anything that came in.
void Run::continue_run(Instant now, RunSink& sink) {
  commit_steps(now, sink);
  if (training()) finish_evaluation(sink);
  complete_rounds(now, sink);
  advance(now, sink);
  end_if_done(sink);
}

// The first step after `granted_` at which something else than the next step happens.
uint64_t Run::next_border() const {
  uint64_t border = plan_->training.steps;
  const auto multiple_after = [&](uint64_t every) { return (granted_ / every + 1) * every; };
  if (plan_->borders.evaluate_every != 0 && plan_->forward_microbatches != 0)
    border = std::min(border, multiple_after(plan_->borders.evaluate_every));
  if (plan_->borders.checkpoint.steps)
    border = std::min(border, multiple_after(*plan_->borders.checkpoint.steps));
  const uint64_t interval = steps_between_rounds();
  if (interval != 0 && may_copy(interval))
    border = std::min(border, std::max(granted_ + 1, next_copy(interval)));
  return border;
}

void Run::grant(Instant now, uint64_t step, RunSink& sink) {
  granted_ = step;
  granted_at_[step] = now;
  write({.kind = CommandKind::Advance, .step = step}, sink);
}

void Run::advance(Instant now, RunSink& sink) {
  if (!training()) return;
  trim_script();
  while (!stopping_ && !ended_ && !forward_.active) {
    write_snapshot_if_due(now, sink);
    write_comparison_if_due(now, sink);
    const uint64_t target = std::min(next_border(), committed_ + options_.window_steps);
    if (granted_ == plan_->training.steps || target <= granted_ || script_.size() >= options_.script_max)
      return;
    grant(now, target, sink);
    write_snapshot_if_due(now, sink);
    if (evaluation_is_due(granted_)) {
      begin_evaluation(granted_);
      continue_forward(sink);
    }
  }
}

Status Run::take_squares(uint32_t stage, const proto::StepReport& report, StepInProgress& step) const {
  const std::vector<uint32_t>& parameters = plan_->stages[stage].parameters;
  if (report.squares.size() != parameters.size())
    return fail(ErrorCode::InvalidArgument, "it has " + std::to_string(report.squares.size()) +
                                                " squares for " + std::to_string(parameters.size()) +
                                                " parameters");
  WEFT_TRY_STATUS(claims_[stage].check_losses(report, plan_->microbatches));
  if (!report.losses.empty()) step.losses = report.losses;
  for (size_t p = 0; p < parameters.size(); ++p) step.squares[parameters[p]] = report.squares[p];
  step.squares_in[stage] = true;
  return {};
}

namespace {
// What cannot be learnt from; an infinite loss alone says that its gradient is none.
std::optional<std::string> not_finite(const proto::StepReport& report) {
  const auto is_not = [](double value) { return !std::isfinite(value); };
  if (const auto at = std::find_if(report.losses.begin(), report.losses.end(), is_not);
      at != report.losses.end())
    return "the loss of microbatch " + std::to_string(at - report.losses.begin()) + " is " +
           (std::isnan(*at) ? "nan" : std::to_string(*at));
  if (std::any_of(report.squares.begin(), report.squares.end(), is_not)) return "a gradient is not";
  if (report.statistics_diverged) return "a running statistic is not";
  return std::nullopt;
}
}  // namespace

// Each microbatch was made of the samples that are its turn: each sample of the endless sequence counts once.
Status Run::check_ledger(uint32_t stage, const proto::StepReport& report, StepInProgress& step) const {
  const auto& positions = report.sample_positions;
  if (!positions.empty()) {
    if (positions.size() != plan_->microbatches)
      return fail(ErrorCode::InvalidArgument, "it names the samples of " + std::to_string(positions.size()) +
                                                  " microbatches of " + std::to_string(plan_->microbatches));
    for (uint32_t m = 0; m < positions.size(); ++m) {
      const uint64_t expected =
          (report.step - 1) * plan_->training.batch_size + uint64_t{m} * plan_->training.microbatch_size;
      if (positions[m] != expected)
        return fail(ErrorCode::InvalidArgument, "microbatch " + std::to_string(m) + " began with sample " +
                                                    std::to_string(positions[m]) +
                                                    " of the sequence, not with " + std::to_string(expected));
    }
    step.positions_in[stage] = true;
  }
  if (!report.updated || step.positions_in[stage]) return {};
  for (const proto::StageProgram& program : plan_->stages[stage].assignment->programs)
    if (program.kind == proto::ProgramKind::Train && !program.data_inputs.empty())
      return fail(ErrorCode::InvalidArgument, "it does not say which samples it read");
  return {};
}

void Run::send_norm(uint64_t number, StepInProgress& step, RunSink& sink) {
  double sum = 0, losses = 0;
  for (const double square : step.squares) sum += square;  // in parameter order, at this one place
  for (const double loss : step.losses) losses += loss;
  step.norm = std::sqrt(sum) / plan_->microbatches;
  const bool is_finite = std::isfinite(step.norm) && std::isfinite(losses) && !step.statistics_diverged;
  step.skip = plan_->training.is_empty(number) || (plan_->training.skips_diverged() && !is_finite);
  step.norm_sent = true;
  if (!plan_->training.decides_together()) return;
  for (uint32_t s = 0; s < stages_.size(); ++s)
    if (!step.updated[s]) sink.send_to_stage(s, norm_of(number, step));
}

proto::GradientNorm Run::norm_of(uint64_t number, const StepInProgress& step) const {
  return {job_, version_, number, step.norm, step.skip};
}

Status Run::on_step_report(Instant now, uint32_t stage, const proto::StepReport& report, RunSink& sink) {
  proto::StageStatus& status = stages_[stage];
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "report of step " + std::to_string(report.step) + ": " + what);
  };
  if (report.step <= status.step) {
    if (may_repeat(stage, report.step)) return {};
    return wrong("it came before");
  }
  if (report.step != status.step + 1 || report.step > granted_) return wrong("it is not the step's turn");
  StepInProgress& step = steps_[report.step];
  if (step.updated.empty()) {
    step.updated.assign(stages_.size(), false);
    step.squares_in = step.positions_in = step.updated;
    step.squares.assign(plan_->parameter_count, 0.0);
  }
  if (const Status ledger = check_ledger(stage, report, step); !ledger) return wrong(ledger.error().message);
  if (!step.squares_in[stage]) {
    if (const Status taken = take_squares(stage, report, step); !taken) return wrong(taken.error().message);
    // Before the norm is sent, and before any snapshot with this step is whole.
    if (const auto what = not_finite(report);
        what && !plan_->training.skips_diverged() && !plan_->training.is_empty(report.step)) {
      ended_ = true;
      sink.diverged({report.step, stage,
                     plan::to_string(plan_->stages[stage].assignment->seat) + ", step " +
                         std::to_string(report.step) + ": " + *what});
      return {};
    }
    step.statistics_diverged |= report.statistics_diverged;
    if (std::all_of(step.squares_in.begin(), step.squares_in.end(), [](bool in) { return in; }))
      send_norm(report.step, step, sink);
  }
  if (!report.updated) return {};
  // One that came back may have had the norm from the broker before it was restarted.
  if (plan_->training.decides_together() && !step.norm_sent && report.step > repeats_until_[stage])
    return wrong("it updated before the norm was known");
  step.updated[stage] = true;
  status.step = report.step;
  status.busy = report.seconds > 0 ? std::min(1.0, report.seconds_busy / report.seconds) : 0;
  status.links = report.links;
  last_progress_ = now;
  if (std::all_of(step.updated.begin(), step.updated.end(), [](bool in) { return in; }))
    measure_step(report.step, now);
  continue_run(now, sink);
  return {};
}

// From when it could begin, so that waiting for grants does not count: a run that waits for its snapshots
// must see that they are too many.
void Run::measure_step(uint64_t number, Instant now) {
  for (Round& round : rounds_)
    if (round.step == number) round.ready_at = now;
  const auto granted = granted_at_.lower_bound(number);
  if (granted != granted_at_.end()) {
    const double took = seconds(now - std::max(granted->second, last_updated_));
    if (took > 0) step_seconds_ = step_seconds_ == 0 ? took : 0.9 * step_seconds_ + 0.1 * took;
  }
  last_updated_ = now;
  if (comparison_ && comparison_->step == number) comparison_->began = now;
  watch_copies(now);
}

void Run::commit_steps(Instant now, RunSink& sink) {
  while (!steps_.empty()) {
    const uint64_t number = steps_.begin()->first;
    StepInProgress& step = steps_.begin()->second;
    if (number != committed_ + 1 || is_gated(number) ||
        !std::all_of(step.updated.begin(), step.updated.end(), [](bool u) { return u; }))
      return;
    committed_ = number;
    double loss = 0;
    for (const double value : step.losses) loss += value;
    loss = step.skip ? std::numeric_limits<double>::quiet_NaN() : loss / plan_->microbatches;
    if (!step.skip) last_loss_ = loss;
    const bool is_empty = plan_->training.is_empty(number);  // which says nothing of divergence
    if (!is_empty) skipped_in_a_row_ = step.skip ? skipped_in_a_row_ + 1 : 0;
    const double elapsed = seconds(now - last_commit_);
    last_commit_ = now;
    // Shown to people: smoothed, because commits come in bunches.
    commit_seconds_ = commit_seconds_ == 0 ? elapsed : 0.95 * commit_seconds_ + 0.05 * elapsed;
    proto::JobEvent event;
    event.kind = JobEventKind::Step;
    event.step = number;
    event.loss = loss;
    event.learning_rate = dag::scheduled_learning_rate(
        plan_->training.schedule, plan_->training.optimizer.learning_rate, number, plan_->training.steps);
    event.seconds = elapsed;
    event.samples_per_second = elapsed > 0 ? plan_->training.batch_size / elapsed : 0;
    event.gradient_norm = step.norm;
    event.samples = number * plan_->training.batch_size;
    event.skipped = step.skip;
    steps_.erase(steps_.begin());
    granted_at_.erase(granted_at_.begin(), granted_at_.lower_bound(number));
    if (number <= recorded_) {
      sink.step_repeated(number, loss);
    } else {
      recorded_ = number;
      sink.emit(std::move(event));
    }
    if (skipped_in_a_row_ == dag::kSkippedInARowMax && !is_empty) {
      ended_ = true;
      return sink.diverged({number, std::nullopt,
                            "step " + std::to_string(number) + " is the " +
                                std::to_string(skipped_in_a_row_) + "th in a row that is skipped",
                            /*may_pass=*/false});
    }
  }
}

Lack Run::lack() const {
  const auto without = [](const std::vector<bool>& said, bool is_own) {
    Lack lack{.is_own = is_own};
    for (uint32_t s = 0; s < said.size(); ++s)
      if (!said[s]) lack.stages.push_back(s);
    return lack;
  };
  if (!steps_.empty() && steps_.begin()->first == committed_ + 1) {
    const StepInProgress& step = steps_.begin()->second;
    const bool waits_for_norm = plan_->training.decides_together() && !step.norm_sent;
    const Lack lack = waits_for_norm ? without(step.squares_in, false)
                                     : without(step.updated, plan_->training.decides_together());
    if (!lack.stages.empty()) return lack;
  }
  for (const Round& round : rounds_) {
    const Lack lack = without(round.direct ? round.made : round.in, true);
    if (!lack.stages.empty()) return lack;
  }
  return {};
}

void Run::request_stop(Instant now, bool to_go_on, RunSink& sink) {
  if (ended_ || (stopping_ && (to_go_on || !moving_))) return;
  moving_ = to_go_on;
  stopping_ = true;
  if (training()) write_last_snapshot(now, sink);
  end_if_done(sink);
}

void Run::end_if_done(RunSink& sink) {
  if (ended_ || !rounds_.empty()) return;
  const bool complete = training() ? !comparison_ && committed_ == plan_->training.steps &&
                                         checkpointed_ == plan_->training.steps && !forward_.active
                                   : forward_.reported == plan_->forward_microbatches;
  if (complete) {
    ended_ = true;
    proto::JobEvent event;
    event.kind = JobEventKind::Result;
    event.step = committed_;
    event.metrics = metrics_;
    event.samples = training() ? 0 : plan_->forward_samples;
    sink.emit(std::move(event));
    sink.finished(committed_);
  } else if (stopping_ && (!training() || (has_last_snapshot() && committed_ == granted_ && !comparison_))) {
    ended_ = true;
    sink.stopped(committed_);
  }
}

}  // namespace weft::broker
