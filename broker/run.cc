#include "broker/run.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace weft::broker {

using proto::Command;
using proto::CommandKind;
using proto::JobEventKind;

Run::Run(proto::JobNumber job, proto::PlanVersion version, std::shared_ptr<const PlannedRun> plan,
         uint64_t after_step, uint32_t predicted, RunOptions options)
    : job_(job),
      version_(version),
      plan_(std::move(plan)),
      options_(options),
      granted_(after_step),
      committed_(after_step),
      checkpointed_(after_step) {
  stages_.resize(plan_->stages.size());
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    stages_[s].stage = s;
    stages_[s].peer = plan_->stages[s].peer;
    stages_[s].step = after_step;
  }
  forward_.reported = forward_.commanded = predicted;
}

void Run::start(Instant now, RunSink& sink) {
  last_checkpoint_ = last_commit_ = last_progress_ = now;
  if (!training()) {
    forward_.active = true;
    forward_.outputs.assign(plan_->forward_microbatches, std::vector<bool>(stages_.size(), false));
    continue_forward(sink);
    end_if_done(sink);
    return;
  }
  if (granted_ == plan_->steps) write_border(now, sink);  // recovered after the last step
  advance(now, sink);
}

void Run::send_all(Command command, RunSink& sink) {
  command.run = job_;
  command.plan_version = version_;
  for (uint32_t s = 0; s < stages_.size(); ++s) sink.send_to_stage(s, command);
}

bool Run::evaluation_is_due(uint64_t step) const {
  if (plan_->forward_microbatches == 0) return false;
  return step == plan_->steps || (plan_->evaluate_every != 0 && step % plan_->evaluate_every == 0);
}

// The first step after `granted_` at which something else than the next step happens.
uint64_t Run::next_border() const {
  uint64_t border = plan_->steps;
  const auto multiple_after = [&](uint64_t every) { return (granted_ / every + 1) * every; };
  if (plan_->evaluate_every != 0 && plan_->forward_microbatches != 0)
    border = std::min(border, multiple_after(plan_->evaluate_every));
  if (plan_->checkpoint_steps) border = std::min(border, multiple_after(*plan_->checkpoint_steps));
  return border;
}

void Run::advance(Instant now, RunSink& sink) {
  if (stopping_ || ended_ || forward_.active || granted_ == plan_->steps) return;
  const uint64_t border = next_border();
  const uint64_t target = std::min(border, committed_ + options_.window_steps);
  if (target <= granted_) return;
  granted_ = target;
  send_all({.kind = CommandKind::Advance, .step = granted_}, sink);
  if (granted_ == border) write_border(now, sink);
}

void Run::write_border(Instant now, RunSink& sink) {
  const bool last = granted_ == plan_->steps;
  if (last || (plan_->checkpoint_steps && granted_ % *plan_->checkpoint_steps == 0))
    request_checkpoint(now, granted_, sink);
  if (!evaluation_is_due(granted_)) return;
  forward_ = Forward{};
  forward_.active = true;
  forward_.step = granted_;
  const size_t count = plan_->forward_microbatches;
  forward_.loss.resize(count);
  forward_.correct.resize(count);
  forward_.counted.resize(count);
  continue_forward(sink);
}

void Run::continue_forward(RunSink& sink) {
  const uint32_t total = plan_->forward_microbatches;
  while (!stopping_ && forward_.active && forward_.commanded < total &&
         forward_.commanded < forward_.reported + 2 * options_.forward_chunk) {
    const uint32_t count = std::min(options_.forward_chunk, total - forward_.commanded);
    send_all({.kind = training() ? CommandKind::Evaluate : CommandKind::Predict,
              .step = forward_.step,
              .microbatches = count,
              .first_microbatch = forward_.commanded},
             sink);
    forward_.commanded += count;
  }
}

Status Run::on_step_report(Instant now, uint32_t stage, const proto::StepReport& report, RunSink& sink) {
  const std::vector<uint32_t>& parameters = plan_->stages[stage].parameters;
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "report of step " + std::to_string(report.step) + ": " + what);
  };
  if (report.step <= stages_[stage].step || report.step > granted_) return wrong("it is not the step's turn");
  StepInProgress& step = steps_[report.step];
  if (step.updated.empty()) {
    step.updated.assign(stages_.size(), false);
    step.squares_in.assign(stages_.size(), false);
    step.squares.assign(plan_->parameter_count, 0.0);
  }
  if (!step.squares_in[stage]) {
    if (report.squares.size() != parameters.size())
      return wrong("it has " + std::to_string(report.squares.size()) + " squares for " +
                   std::to_string(parameters.size()) + " parameters");
    for (size_t p = 0; p < parameters.size(); ++p) step.squares[parameters[p]] = report.squares[p];
    if (!report.losses.empty()) {
      if (report.losses.size() != plan_->microbatches) return wrong("it has not a loss for each microbatch");
      step.losses = report.losses;
    }
    step.squares_in[stage] = true;
  }
  if (std::all_of(step.squares_in.begin(), step.squares_in.end(), [](bool in) { return in; }) &&
      !step.norm_sent) {
    double sum = 0;
    for (const double square : step.squares) sum += square;  // in parameter order, at this one place
    step.norm = std::sqrt(sum) / plan_->microbatches;
    step.norm_sent = true;
    if (plan_->clip_norm > 0)
      for (uint32_t s = 0; s < stages_.size(); ++s)
        sink.send_to_stage(s, proto::GradientNorm{job_, version_, report.step, step.norm});
  }
  if (!report.updated) return {};
  if (plan_->clip_norm > 0 && !step.norm_sent) return wrong("it updated before the norm was known");
  step.updated[stage] = true;
  proto::StageStatus& status = stages_[stage];
  status.step = report.step;
  status.busy = report.seconds > 0 ? std::min(1.0, report.seconds_busy / report.seconds) : 0;
  status.links = report.links;
  last_progress_ = now;
  commit_steps(now, sink);
  advance(now, sink);
  return {};
}

void Run::commit_steps(Instant now, RunSink& sink) {
  while (!steps_.empty()) {
    auto& [number, step] = *steps_.begin();
    if (number != committed_ + 1 ||
        !std::all_of(step.updated.begin(), step.updated.end(), [](bool u) { return u; }))
      return;
    committed_ = number;
    double loss = 0;
    for (const double value : step.losses) loss += value;
    last_loss_ = loss / plan_->microbatches;
    const double elapsed = seconds(now - last_commit_);
    last_commit_ = now;
    const double rate = elapsed > 0 ? plan_->batch_size / elapsed : 0;
    // Shown to people: smoothed, because commits come in bunches.
    samples_per_second_ = samples_per_second_ == 0 ? rate : 0.95 * samples_per_second_ + 0.05 * rate;
    proto::JobEvent event;
    event.kind = JobEventKind::Step;
    event.step = number;
    event.loss = last_loss_;
    event.learning_rate =
        dag::scheduled_learning_rate(plan_->schedule, plan_->optimizer.learning_rate, number, plan_->steps);
    event.seconds = elapsed;
    event.samples_per_second = rate;
    event.gradient_norm = step.norm;
    steps_.erase(steps_.begin());
    sink.emit(std::move(event));
  }
}

void Run::request_checkpoint(Instant now, uint64_t step, RunSink& sink) {
  last_checkpoint_ = now;
  checkpoints_.push_back({.step = step, .in = std::vector<bool>(stages_.size(), false), .tensors = {}});
  send_all({.kind = CommandKind::Checkpoint, .step = step}, sink);
}

Status Run::on_checkpoint_report(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                 RunSink& sink) {
  const auto at = std::find_if(checkpoints_.begin(), checkpoints_.end(), [&](const auto& checkpoint) {
    return checkpoint.step == report.step && !checkpoint.in[stage];
  });
  if (at == checkpoints_.end())
    return fail(ErrorCode::InvalidArgument,
                "a checkpoint of step " + std::to_string(report.step) + " was not asked for");
  at->in[stage] = true;
  at->tensors.insert(at->tensors.end(), report.tensors.begin(), report.tensors.end());
  last_progress_ = now;
  while (!checkpoints_.empty()) {
    CheckpointInProgress& first = checkpoints_.front();
    if (!std::all_of(first.in.begin(), first.in.end(), [](bool in) { return in; }) || first.step > committed_)
      break;
    checkpointed_ = first.step;
    proto::JobEvent event;
    event.kind = JobEventKind::Checkpoint;
    event.step = first.step;
    CheckpointCommitted checkpoint{job_, first.step, std::move(first.tensors)};
    checkpoints_.pop_front();
    sink.commit_checkpoint(std::move(checkpoint));
    sink.emit(std::move(event));
  }
  end_if_done(sink);
  return {};
}

uint64_t Run::samples_of(uint32_t microbatch) const {
  const uint64_t first = uint64_t{microbatch} * plan_->microbatch_size;
  return std::min<uint64_t>(plan_->microbatch_size, plan_->forward_samples - first);
}

Status Run::on_evaluation_report(Instant now, uint32_t stage, const proto::EvaluationReport& report,
                                 RunSink& sink) {
  (void)stage;
  if (!forward_.active || !training() || report.step != forward_.step)
    return fail(ErrorCode::InvalidArgument, "an evaluation that was not asked for");
  const auto take = [&](const std::vector<double>& values, std::vector<std::optional<double>>& into) -> bool {
    if (values.empty()) return true;
    if (values.size() > forward_.commanded || report.first_microbatch > forward_.commanded - values.size())
      return false;
    for (size_t i = 0; i < values.size(); ++i) into[report.first_microbatch + i] = values[i];
    return true;
  };
  if (!take(report.loss, forward_.loss) || !take(report.correct, forward_.correct) ||
      !take(report.counted, forward_.counted))
    return fail(ErrorCode::InvalidArgument, "an evaluation of microbatches that were not asked for");
  while (forward_.reported < forward_.commanded) {
    const uint32_t m = forward_.reported;
    if (!forward_.loss[m] || (plan_->accuracy && !forward_.correct[m]) ||
        (plan_->masked && !forward_.counted[m]))
      break;
    ++forward_.reported;
    last_progress_ = now;
  }
  if (forward_.reported == plan_->forward_microbatches) {
    finish_evaluation(sink);
    advance(now, sink);
    end_if_done(sink);
  } else {
    continue_forward(sink);
  }
  return {};
}

// As one machine does it: the mean over what counts, added in the order of microbatches.
void Run::finish_evaluation(RunSink& sink) {
  double loss = 0, counted = 0, correct = 0;
  uint64_t samples = 0;
  for (uint32_t m = 0; m < plan_->forward_microbatches; ++m) {
    const double valid = static_cast<double>(samples_of(m));
    loss += plan_->masked ? *forward_.loss[m] : *forward_.loss[m] * valid;
    counted += plan_->masked ? *forward_.counted[m] : valid;
    if (plan_->accuracy) correct += *forward_.correct[m];
    samples += samples_of(m);
  }
  metrics_ = {{"loss", loss / counted}};
  if (plan_->accuracy) metrics_["accuracy"] = correct / counted;
  proto::JobEvent event;
  event.kind = JobEventKind::Evaluation;
  event.step = forward_.step;
  event.samples = samples;
  event.metrics = metrics_;
  forward_.active = false;
  sink.emit(std::move(event));
}

Status Run::on_prediction_report(Instant now, uint32_t stage, const proto::PredictionReport& report,
                                 RunSink& sink) {
  if (training() || report.microbatch >= forward_.commanded)
    return fail(ErrorCode::InvalidArgument, "a prediction that was not asked for");
  if (report.microbatch < forward_.reported || forward_.outputs[report.microbatch][stage]) return {};
  forward_.outputs[report.microbatch][stage] = true;
  sink.commit_prediction(report);
  while (forward_.reported < forward_.commanded) {
    const auto& in = forward_.outputs[forward_.reported];
    if (std::count(in.begin(), in.end(), true) < plan_->prediction_stages) break;
    ++forward_.reported;
    last_progress_ = now;
  }
  continue_forward(sink);
  end_if_done(sink);
  return {};
}

void Run::request_stop(Instant now, RunSink& sink) {
  if (stopping_ || ended_) return;
  stopping_ = true;
  if (training() && (granted_ > checkpointed_ || !checkpoints_.empty())) {
    if (checkpoints_.empty() || checkpoints_.back().step != granted_) request_checkpoint(now, granted_, sink);
    return;
  }
  end_if_done(sink);
}

void Run::end_if_done(RunSink& sink) {
  if (ended_ || !checkpoints_.empty()) return;
  const bool complete = training()
                            ? committed_ == plan_->steps && checkpointed_ == plan_->steps && !forward_.active
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
  } else if (stopping_) {
    ended_ = true;
    sink.stopped(checkpointed_);
  }
}

void Run::on_tick(Instant now, RunSink& sink) {
  if (ended_ || !training() || stopping_ || forward_.active || plan_->checkpoint_steps ||
      !checkpoints_.empty())
    return;
  if (granted_ <= checkpointed_ || granted_ == plan_->steps) return;
  if (now - last_checkpoint_ >= plan_->checkpoint_every.value_or(options_.checkpoint_every_default))
    request_checkpoint(now, granted_, sink);
}

}  // namespace weft::broker
