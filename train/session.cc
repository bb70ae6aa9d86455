#include "train/session.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "dag/lower.h"
#include "dag/op_table.h"

namespace weft::train {

using dag::OutputRole;
using dag::Tensor;

namespace {

Result<std::vector<double>> numbers(peer::Download& download) {
  WEFT_TRY(const Tensor tensor, download.take());
  return to_doubles(tensor);
}

// Of the mean gradient.
Result<double> norm_of(peer::Download& squares, uint32_t microbatches) {
  WEFT_TRY(const std::vector<double> of_parameters, numbers(squares));
  double sum = 0;
  for (const double square : of_parameters) sum += square;
  return std::sqrt(sum) / microbatches;
}

}  // namespace

peer::Precision precision_of(const configs::Job& job) { return {.compute = job.arithmetic}; }

Status check_precision(const configs::Job& job, const peer::Backend& backend) {
  const Status checked = backend.check(precision_of(job));
  if (checked) return {};
  return fail(job.error(checked.error().code, "precision",
                        checked.error().message + "; say precision: fp32, or use a device that has it"));
}

Result<std::unique_ptr<peer::Executor>> make_executor(const dag::Graph& graph, const dag::Weights& weights,
                                                      const std::shared_ptr<peer::State>& state,
                                                      peer::ExecutorOptions options) {
  std::vector<const dag::Weights::value_type*> fresh;
  for (const auto& weight : weights)
    if (state->find(dag::of_initializer(weight.first)) == nullptr) fresh.push_back(&weight);
  auto lowered =
      std::make_shared<const dag::Graph>(dag::lower(graph, dag::op_table(), state->backend().traits()));
  WEFT_TRY(auto executor, peer::Executor::create(std::move(lowered), state, std::move(options)));
  for (const auto* weight : fresh)
    WEFT_TRY_STATUS(state->write(dag::of_initializer(weight->first), weight->second));
  return executor;
}

Result<std::unique_ptr<TrainingSession>> TrainingSession::create(Prepared prepared, const configs::Job& job,
                                                                 const std::shared_ptr<peer::State>& state) {
  auto session = std::make_unique<TrainingSession>();
  session->job_ = &job;
  session->feeds_ = std::move(prepared.feeds);
  session->bounds_ = std::move(prepared.bounds);
  session->divisors_ = std::move(prepared.divisors);
  WEFT_TRY(session->executor_, make_executor(prepared.graph, prepared.weights, state,
                                             {.accumulates = job.batch_size > job.microbatch_size,
                                              .sums_ranges = job.gradient_ranges > 1,
                                              .optimizer = job.optimizer,
                                              .undoes_statistics = session->may_skip(),
                                              .precision = precision_of(job)}));
  WEFT_TRY(session->microbatch_, session->executor_->make_microbatch());
  session->loss_ = session->executor_->graph().find_output(OutputRole::Loss)->value;
  return session;
}

Status TrainingSession::take(const Pending& pending, StepResult& result) const {
  const uint32_t microbatches = job_->batch_size / job_->microbatch_size;
  for (const auto& download : pending.losses) {
    WEFT_TRY(const std::vector<double> loss, numbers(*download));
    result.loss += loss.at(0);
  }
  result.loss /= microbatches;
  WEFT_TRY(result.gradient_norm, norm_of(*pending.squares, microbatches));
  std::vector<double> statistics;
  if (pending.statistics) {
    WEFT_TRY(statistics, numbers(*pending.statistics));
  }
  const auto is_finite = [](double number) { return std::isfinite(number); };
  if (!is_finite(result.loss))
    result.not_finite = "the loss is " + (std::isnan(result.loss) ? "nan" : std::to_string(result.loss));
  else if (!is_finite(result.gradient_norm))
    result.not_finite = "a gradient is not finite";
  else if (!std::all_of(statistics.begin(), statistics.end(), is_finite))
    result.not_finite = "a running statistic is not finite";
  return {};
}

bool TrainingSession::may_skip() const { return job_->skips_diverged() || !divisors_.empty(); }

// The device is waited for once, or, where the update depends on what came before it, twice.
Result<TrainingSession::StepResult> TrainingSession::step(const StepPlace& place, uint64_t steps,
                                                          data::Loader& loader) {
  const uint32_t microbatches = job_->batch_size / job_->microbatch_size;
  StepResult result;
  Pending pending;
  for (uint32_t m = 0; m < microbatches; ++m) {
    const bool is_set = next_.has_value();
    std::optional<data::Microbatch> batch = std::exchange(next_, std::nullopt);
    if (!is_set) {
      WEFT_TRY(batch, loader.next());
    }
    WEFT_CHECK_MSG(batch && batch->step == place.step, "the loader is at another step");
    WEFT_TRY_STATUS(check_bounds(bounds_, *batch));
    if (!is_set) WEFT_TRY_STATUS(set_inputs(*batch));
    result.is_empty = batch->is_of_empty_step;
    if (m == 0 && (job_->skips_diverged() || result.is_empty)) WEFT_TRY_STATUS(executor_->keep_statistics());
    WEFT_TRY_STATUS(run_microbatch(place.step, m, *batch));
    WEFT_TRY(auto loss, executor_->begin_value(*microbatch_, loss_));
    pending.losses.push_back(std::move(loss));
  }
  result.learning_rate =
      dag::scheduled_learning_rate(job_->schedule, job_->optimizer.learning_rate, place.scheduled, steps);
  WEFT_TRY(pending.squares, executor_->begin_gradient_squares());
  WEFT_TRY(pending.statistics, executor_->begin_statistic_squares());
  const bool decides = job_->decides_together() || result.is_empty;
  if (decides) {
    WEFT_TRY_STATUS(set_next_inputs(loader));
    WEFT_TRY_STATUS(take(pending, result));
  }
  result.skipped = result.is_empty || (job_->skips_diverged() && !result.not_finite.empty());
  if (result.skipped) {
    ++skipped_steps_;
    WEFT_TRY_STATUS(executor_->undo_statistics());
    return result;
  }
  WEFT_TRY_STATUS(executor_->update(
      {.step = place.update,
       .learning_rate = result.learning_rate,
       .gradient_scale = dag::clip_factor(job_->clip_norm, result.gradient_norm) / microbatches}));
  if (decides) return result;
  WEFT_TRY_STATUS(set_next_inputs(loader));
  WEFT_TRY_STATUS(take(pending, result));
  return result;
}

// While a device computes: what the next step begins with goes there meanwhile, if it has been read.
Status TrainingSession::set_next_inputs(data::Loader& loader) {
  next_ = loader.next_if_ready();
  return next_ ? set_inputs(*next_) : Status();
}

Status TrainingSession::set_inputs(const data::Microbatch& batch) {
  for (const auto& [name, tensor] : batch.tensors)
    WEFT_TRY_STATUS(executor_->set_input(*microbatch_, name, tensor));
  return {};
}

Status TrainingSession::run_microbatch(uint64_t step, uint32_t index, const data::Microbatch& batch) {
  microbatch_->turn =
      dag::gradient_turn(index, job_->batch_size / job_->microbatch_size, job_->gradient_ranges);
  microbatch_->context = {.seed = job_->seed,
                          .step = step,
                          .sample_position = static_cast<int64_t>(batch.sample_position),
                          .microbatch_size = job_->microbatch_size};
  return executor_->run(*microbatch_);
}

Result<std::unique_ptr<EvaluationSession>> EvaluationSession::create(
    Prepared prepared, const configs::Job& job, const std::shared_ptr<peer::State>& state) {
  auto session = std::make_unique<EvaluationSession>();
  session->feeds_ = std::move(prepared.feeds);
  session->bounds_ = std::move(prepared.bounds);
  session->terms_ = std::move(prepared.loss_terms);
  WEFT_TRY(session->executor_, make_executor(prepared.graph, prepared.weights, state,
                                             {.precision = precision_of(job), .rows_alone = true}));
  WEFT_TRY(session->microbatch_, session->executor_->make_microbatch());
  return session;
}

// All are begun before one is waited for.
Result<std::map<OutputRole, std::vector<double>>> EvaluationSession::outputs() {
  std::map<OutputRole, std::unique_ptr<peer::Download>> begun;
  for (const OutputRole role : {OutputRole::Loss, OutputRole::Counted, OutputRole::Correct})
    if (const dag::GraphOutput* output = executor_->graph().find_output(role)) {
      WEFT_TRY(begun[role], executor_->begin_value(*microbatch_, output->value));
    }
  std::map<OutputRole, std::vector<double>> results;
  for (const auto& [role, download] : begun) {
    WEFT_TRY(results[role], numbers(*download));
  }
  return results;
}

Result<EvaluationSession::Metrics> EvaluationSession::evaluate(
    const std::shared_ptr<const data::Dataset>& dataset, uint32_t microbatch_size) {
  const bool masked = executor_->graph().find_output(OutputRole::Counted) != nullptr;
  const bool has_accuracy = executor_->graph().find_output(OutputRole::Correct) != nullptr;
  data::Loader loader(dataset, feeds_, data::evaluation_requests(dataset->sample_count(), microbatch_size),
                      {.on_start = [this] { executor_->state().backend().release_calling_thread(); }});
  Metrics metrics;
  dag::EvaluationSums sums(terms_);
  for (;;) {
    WEFT_TRY(auto batch, loader.next());
    if (!batch) break;
    // A loss that the model itself computes cannot leave padding out: a short last microbatch is not
    // evaluated.
    if (!masked && batch->valid_count < microbatch_size) break;
    WEFT_TRY_STATUS(check_bounds(bounds_, *batch));
    for (const auto& [name, tensor] : batch->tensors)
      WEFT_TRY_STATUS(executor_->set_input(*microbatch_, name, tensor));
    if (masked) {
      Tensor mask({dag::DType::F32, {microbatch_size}});
      for (uint32_t i = 0; i < batch->valid_count; ++i) mask.mutable_as<float>()[i] = 1.0f;
      WEFT_TRY_STATUS(executor_->set_input(*microbatch_, dag::kMaskInput, mask));
    }
    microbatch_->context.microbatch_size = microbatch_size;
    WEFT_TRY_STATUS(executor_->run(*microbatch_));
    WEFT_TRY(auto results, outputs());
    std::vector<double>& loss = results.at(OutputRole::Loss);
    std::vector<double> counted{static_cast<double>(batch->valid_count)}, correct{0};
    if (masked)
      counted = results.at(OutputRole::Counted);
    else
      loss[0] *= batch->valid_count;
    if (has_accuracy) correct = results.at(OutputRole::Correct);
    sums.add(loss, counted, correct[0]);
    metrics.samples += batch->valid_count;
  }
  metrics.loss = sums.loss();
  if (has_accuracy) metrics.accuracy = sums.accuracy();
  metrics.by_name = sums.metrics(has_accuracy);
  return metrics;
}

}  // namespace weft::train
