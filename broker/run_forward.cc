// Evaluation and prediction: forward passes over a data set, a few microbatches a command.
#include <algorithm>

#include "broker/run.h"

namespace weft::broker {

using proto::CommandKind;
using proto::JobEventKind;

bool Run::evaluation_is_due(uint64_t step) const {
  if (plan_->forward_microbatches == 0 || step <= evaluated_) return false;
  return step == plan_->training.steps ||
         (plan_->borders.evaluate_every != 0 && step % plan_->borders.evaluate_every == 0);
}

void Run::begin_evaluation(uint64_t step) {
  forward_ = Forward{};
  forward_.active = true;
  forward_.step = step;
  const size_t count = plan_->forward_microbatches, terms = plan_->loss_terms.count();
  const size_t counts = plan_->loss_terms.counted();
  forward_.loss.resize(count * terms);
  forward_.correct.resize(count);
  forward_.counted.resize(count * counts);
}

// What was reported before is not asked for, or not taken, again.
void Run::begin_prediction(const RunBegin& begin) {
  forward_.active = true;
  forward_.reported = forward_.commanded = begin.predicted;
  forward_.outputs.assign(plan_->forward_microbatches, std::vector<bool>(stages_.size(), false));
  forward_.reports.assign(plan_->forward_microbatches, 0);
  forward_.names.resize(plan_->forward_microbatches);
  for (const proto::PredictionReport& report : begin.predictions) {
    if (report.microbatch >= plan_->forward_microbatches || report.outputs.empty()) continue;
    ++forward_.reports[report.microbatch];
    for (const auto& output : report.outputs) forward_.names[report.microbatch].insert(output.key.name);
  }
}

void Run::continue_forward(RunSink& sink) {
  const uint32_t total = plan_->forward_microbatches;
  while (!stopping_ && forward_.active && forward_.commanded < total &&
         forward_.commanded < forward_.reported + 2 * options_.forward_chunk) {
    const uint32_t count = std::min(options_.forward_chunk, total - forward_.commanded);
    const uint32_t first = forward_.commanded;
    forward_.commanded += count;
    write({.kind = training() ? CommandKind::Evaluate : CommandKind::Predict,
           .step = forward_.step,
           .microbatches = count,
           .first_microbatch = first},
          sink);
  }
}

uint64_t Run::samples_of(uint32_t microbatch) const {
  const uint64_t first = uint64_t{microbatch} * plan_->training.microbatch_size;
  return std::min<uint64_t>(plan_->training.microbatch_size, plan_->forward_samples - first);
}

Status Run::on_evaluation_report(Instant now, uint32_t stage, const proto::EvaluationReport& report,
                                 RunSink& sink) {
  if (!forward_.active || !training() || report.step != forward_.step) {
    if (training() && may_repeat(stage, report.step)) return {};
    return fail(ErrorCode::InvalidArgument, "an evaluation that was not asked for");
  }
  WEFT_TRY_STATUS(claims_[stage].check(report));
  const size_t terms = plan_->loss_terms.count(), counts = plan_->loss_terms.counted();
  const auto take = [&](const std::vector<double>& values, size_t each,
                        std::vector<std::optional<double>>& into) -> bool {
    const size_t count = values.size() / each;  // microbatches
    if (count * each != values.size() || count > forward_.commanded ||
        report.first_microbatch > forward_.commanded - count)
      return false;
    for (size_t i = 0; i < values.size(); ++i) into[report.first_microbatch * each + i] = values[i];
    return true;
  };
  if (!take(report.loss, terms, forward_.loss) || !take(report.correct, 1, forward_.correct) ||
      !take(report.counted, counts, forward_.counted))
    return fail(ErrorCode::InvalidArgument, "an evaluation of microbatches that were not asked for");
  while (forward_.reported < forward_.commanded) {
    const uint32_t m = forward_.reported;
    if (!forward_.loss[m * terms] || (plan_->accuracy && !forward_.correct[m]) ||
        (plan_->masked && !forward_.counted[m * counts]))
      break;
    ++forward_.reported;
    last_progress_ = now;
  }
  continue_forward(sink);
  continue_run(now, sink);
  return {};
}

// As one machine does it: the mean over what counts, added in the order of microbatches; said after the step.
void Run::finish_evaluation(RunSink& sink) {
  if (!forward_.active || forward_.reported < plan_->forward_microbatches || committed_ < forward_.step)
    return;
  const size_t terms = plan_->loss_terms.count(), counts = plan_->loss_terms.counted();
  dag::EvaluationSums sums(plan_->loss_terms);
  std::vector<double> loss(terms), counted(counts);
  uint64_t samples = 0;
  for (uint32_t m = 0; m < plan_->forward_microbatches; ++m) {
    const double valid = static_cast<double>(samples_of(m));
    for (size_t i = 0; i < terms; ++i)
      loss[i] = plan_->masked ? *forward_.loss[m * terms + i] : *forward_.loss[m * terms + i] * valid;
    for (size_t i = 0; i < counts; ++i)
      counted[i] = plan_->masked ? *forward_.counted[m * counts + i] : valid;
    sums.add(loss, counted, plan_->accuracy ? *forward_.correct[m] : 0);
    samples += samples_of(m);
  }
  metrics_ = {{"loss", sums.loss()}};
  if (plan_->accuracy) metrics_["accuracy"] = sums.accuracy();
  proto::JobEvent event;
  event.kind = JobEventKind::Evaluation;
  event.step = evaluated_ = forward_.step;
  event.samples = samples;
  event.metrics = metrics_;
  forward_.active = false;
  sink.emit(std::move(event));
}

Status Run::on_prediction_report(Instant now, uint32_t stage, const proto::PredictionReport& report,
                                 RunSink& sink) {
  if (training() || report.microbatch >= forward_.commanded)
    return fail(ErrorCode::InvalidArgument, "a prediction that was not asked for");
  const auto m = report.microbatch;
  const bool named = !report.outputs.empty() && forward_.names[m].contains(report.outputs[0].key.name);
  if (m < forward_.reported || forward_.outputs[m][stage] || named) {
    ++repeats_;
    return {};
  }
  WEFT_TRY_STATUS(claims_[stage].check(report));
  forward_.outputs[m][stage] = true;
  for (const auto& output : report.outputs) forward_.names[m].insert(output.key.name);
  ++forward_.reports[m];
  sink.commit_prediction(report);
  while (forward_.reported < forward_.commanded &&
         forward_.reports[forward_.reported] >= plan_->prediction_stages) {
    ++forward_.reported;
    last_progress_ = now;
  }
  continue_forward(sink);
  end_if_done(sink);
  return {};
}

}  // namespace weft::broker
