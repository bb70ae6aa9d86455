#include "broker/run/run_forward.h"

#include <algorithm>

#include "base/check.h"

namespace weft::broker {

using proto::CommandKind;

ForwardPass::ForwardPass(std::shared_ptr<const PlannedRun> plan, const RunBegin& begin, uint32_t chunk)
    : plan_(std::move(plan)),
      inner_(*plan_),
      chunk_(chunk),
      evaluated_(begin.evaluated),
      metrics_(begin.metrics) {
  if (!trains()) begin_prediction(begin);
}

bool ForwardPass::is_due(uint64_t step) const {
  if (plan_->forward_microbatches == 0 || inner_.made(step) <= evaluated_) return false;
  const uint64_t every = plan_->borders.evaluate_every;
  if (step == plan_->training.steps) return true;
  if (every == 0) return false;
  // What the replicas before owe, who did not end their last round like these: they were more, or fewer.
  if (plan_->replicas_max > 0 && inner_.is_begun_at(step))
    return inner_.made(step) / every > evaluated_ / every;
  return inner_.is_due(every, step);
}

void ForwardPass::begin_evaluation(uint64_t step) {
  is_active_ = true;
  step_ = step;
  commanded_ = reported_ = 0;
  const size_t count = plan_->forward_microbatches;
  loss_.assign(count * plan_->loss_terms.count(), std::nullopt);
  correct_.assign(count, std::nullopt);
  counted_.assign(count * plan_->loss_terms.counted(), std::nullopt);
}

// What was reported before is not asked for, or not taken, again.
void ForwardPass::begin_prediction(const RunBegin& begin) {
  const uint32_t count = plan_->forward_microbatches;
  is_active_ = true;
  reported_ = commanded_ = begin.predicted;
  outputs_.assign(count, std::vector<bool>(plan_->stages.size(), false));
  reports_.assign(count, 0);
  names_.resize(count);
  for (const proto::PredictionReport& report : begin.predictions) {
    if (report.microbatch >= count || report.outputs.empty()) continue;
    ++reports_[report.microbatch];
    for (const auto& output : report.outputs) names_[report.microbatch].insert(output.key.name);
  }
}

void ForwardPass::resume(const proto::Command& command) {
  if (command.kind == CommandKind::Evaluate && inner_.made(command.step) > evaluated_) {
    if (!is_active_ || step_ != command.step) begin_evaluation(command.step);
  } else if (command.kind != CommandKind::Predict) {
    return;
  }
  if (is_active_) commanded_ = std::max(commanded_, command.first_microbatch + command.microbatches);
}

std::optional<proto::Command> ForwardPass::next() {
  const uint32_t total = plan_->forward_microbatches;
  if (!is_active_ || commanded_ >= total || commanded_ >= reported_ + 2 * chunk_) return std::nullopt;
  const uint32_t count = std::min(chunk_, total - commanded_);
  const uint32_t first = commanded_;
  commanded_ += count;
  return proto::Command{.kind = trains() ? CommandKind::Evaluate : CommandKind::Predict,
                        .step = step_,
                        .microbatches = count,
                        .first_microbatch = first};
}

bool ForwardPass::is_settled(const proto::Command& command) const {
  if (command.kind == CommandKind::Evaluate) return inner_.made(command.step) <= evaluated_;
  return command.first_microbatch + command.microbatches <= reported_;
}

uint64_t ForwardPass::samples_of(uint32_t microbatch) const {
  const uint64_t size = plan_->training.microbatch_size;
  return std::min<uint64_t>(size, plan_->forward_samples - microbatch * size);
}

// ---- evaluation

bool ForwardPass::awaits(const proto::EvaluationReport& report) const {
  return trains() && is_active_ && report.step == step_;
}

Result<bool> ForwardPass::on_report(const proto::EvaluationReport& report) {
  const size_t terms = plan_->loss_terms.count(), counts = plan_->loss_terms.counted();
  const auto take = [&](const std::vector<double>& values, size_t each,
                        std::vector<std::optional<double>>& into) -> bool {
    const size_t count = values.size() / each;  // microbatches
    if (count * each != values.size() || count > commanded_ || report.first_microbatch > commanded_ - count)
      return false;
    for (size_t i = 0; i < values.size(); ++i) into[report.first_microbatch * each + i] = values[i];
    return true;
  };
  if (!take(report.loss, terms, loss_) || !take(report.correct, 1, correct_) ||
      !take(report.counted, counts, counted_))
    return fail(ErrorCode::InvalidArgument, "an evaluation of microbatches that were not asked for");
  const uint32_t before = reported_;
  const auto is_there = [&](uint32_t m) {
    return loss_[m * terms] && (!plan_->accuracy || correct_[m]) && (!plan_->masked || counted_[m * counts]);
  };
  while (reported_ < commanded_ && is_there(reported_)) ++reported_;
  return reported_ != before;
}

// As one machine does it: the mean over what counts, added in the order of microbatches; said after the step.
std::optional<proto::JobEvent> ForwardPass::finish(uint64_t committed) {
  if (!trains() || !is_active_ || reported_ < plan_->forward_microbatches || committed < step_)
    return std::nullopt;
  const size_t terms = plan_->loss_terms.count(), counts = plan_->loss_terms.counted();
  dag::EvaluationSums sums(plan_->loss_terms);
  std::vector<double> loss(terms), counted(counts);
  uint64_t samples = 0;
  for (uint32_t m = 0; m < plan_->forward_microbatches; ++m) {
    const double valid = static_cast<double>(samples_of(m));
    for (size_t i = 0; i < terms; ++i)
      loss[i] = plan_->masked ? *loss_[m * terms + i] : *loss_[m * terms + i] * valid;
    for (size_t i = 0; i < counts; ++i) counted[i] = plan_->masked ? *counted_[m * counts + i] : valid;
    sums.add(loss, counted, plan_->accuracy ? *correct_[m] : 0);
    samples += samples_of(m);
  }
  metrics_ = sums.metrics(plan_->accuracy);
  proto::JobEvent event;
  event.kind = proto::JobEventKind::Evaluation;
  event.step = evaluated_ = inner_.made(step_);
  event.samples = samples;
  event.metrics = metrics_;
  is_active_ = false;
  return event;
}

// ---- prediction

bool ForwardPass::is_asked(const proto::PredictionReport& report) const {
  return !trains() && report.microbatch < commanded_;
}

bool ForwardPass::has(uint32_t stage, const proto::PredictionReport& report) const {
  const uint32_t m = report.microbatch;
  const bool is_named = !report.outputs.empty() && names_[m].contains(report.outputs[0].key.name);
  return m < reported_ || outputs_[m][stage] || is_named;
}

bool ForwardPass::on_report(uint32_t stage, const proto::PredictionReport& report) {
  WEFT_CHECK(is_asked(report) && !has(stage, report));
  outputs_[report.microbatch][stage] = true;
  for (const auto& output : report.outputs) names_[report.microbatch].insert(output.key.name);
  ++reports_[report.microbatch];
  const uint32_t before = reported_;
  while (reported_ < commanded_ && reports_[reported_] >= plan_->prediction_stages) ++reported_;
  return reported_ != before;
}

Status ForwardPass::check() const {
  const auto broken = [](const std::string& what) { return fail(ErrorCode::Internal, "forward: " + what); };
  if (reported_ > commanded_) return broken("microbatches are there that were not asked for");
  if (commanded_ > plan_->forward_microbatches)
    return broken("more microbatches are asked for than there are");
  if (is_active_ && trains() && inner_.made(step_) <= evaluated_) return broken("a step is evaluated twice");
  for (uint32_t m = 0; m < reported_ && is_active_ && trains(); ++m)
    if (!loss_[m * plan_->loss_terms.count()]) return broken("a microbatch without loss counts as there");
  return {};
}

}  // namespace weft::broker
