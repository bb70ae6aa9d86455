#include "broker/store/run_plan.h"

namespace weft::broker {

proto::RunPlan to_message(const PlannedRun& run) {
  proto::RunPlan plan{.stages = {},
                      .after_step = run.stages.front().assignment->after_step,
                      .steps = run.steps,
                      .batch_size = run.batch_size,
                      .microbatches = run.microbatches,
                      .parameter_count = run.parameter_count,
                      .evaluate_every = run.evaluate_every,
                      .checkpoint_every = run.checkpoint_every,
                      .checkpoint_steps = run.checkpoint_steps,
                      .forward_microbatches = run.forward_microbatches,
                      .forward_samples = run.forward_samples,
                      .microbatch_size = run.microbatch_size,
                      .masked = run.masked,
                      .accuracy = run.accuracy,
                      .loss_terms = run.loss_terms,
                      .prediction_stages = run.prediction_stages,
                      .equal_bits = run.equal_bits,
                      .equal_bits_required = run.equal_bits_required,
                      .fingerprint = run.fingerprint,
                      .explanation = run.explanation,
                      .relay_tickets = run.relay_tickets,
                      .data_key = run.data_key,
                      .predicted_step = run.predicted_step,
                      .gentler = run.gentler};
  for (const PlannedStage& stage : run.stages)
    plan.stages.push_back(
        {stage.peer, stage.parameters, stage.microbatch_seconds, stage.pinned, stage.owner});
  return plan;
}

std::shared_ptr<const PlannedRun> from_message(
    proto::RunPlan plan, std::vector<std::shared_ptr<const proto::AssignStage>> assignments) {
  if (assignments.empty() || assignments.size() != plan.stages.size()) return nullptr;
  const proto::TrainingSpec& training = assignments.front()->training;
  auto run = std::make_shared<PlannedRun>(PlannedRun{.stages = {},
                                                     .steps = plan.steps,
                                                     .batch_size = plan.batch_size,
                                                     .microbatches = plan.microbatches,
                                                     .parameter_count = plan.parameter_count,
                                                     .optimizer = training.optimizer,
                                                     .schedule = training.schedule,
                                                     .clip_norm = training.clip_norm,
                                                     .on_divergence = training.on_divergence,
                                                     .empty_steps = training.empty_steps,
                                                     .evaluate_every = plan.evaluate_every,
                                                     .checkpoint_every = plan.checkpoint_every,
                                                     .checkpoint_steps = plan.checkpoint_steps,
                                                     .forward_microbatches = plan.forward_microbatches,
                                                     .forward_samples = plan.forward_samples,
                                                     .microbatch_size = plan.microbatch_size,
                                                     .masked = plan.masked,
                                                     .accuracy = plan.accuracy,
                                                     .loss_terms = std::move(plan.loss_terms),
                                                     .prediction_stages = plan.prediction_stages,
                                                     .equal_bits = plan.equal_bits,
                                                     .equal_bits_required = plan.equal_bits_required,
                                                     .fingerprint = std::move(plan.fingerprint),
                                                     .explanation = std::move(plan.explanation),
                                                     .relay_tickets = std::move(plan.relay_tickets),
                                                     .data_key = plan.data_key,
                                                     .predicted_step = plan.predicted_step,
                                                     .gentler = plan.gentler});
  for (size_t s = 0; s < assignments.size(); ++s)
    run->stages.push_back({.peer = plan.stages[s].peer,
                           .assignment = std::move(assignments[s]),
                           .parameters = std::move(plan.stages[s].parameters),
                           .microbatch_seconds = plan.stages[s].microbatch_seconds,
                           .pinned = plan.stages[s].pinned,
                           .owner = std::move(plan.stages[s].owner)});
  return run;
}

}  // namespace weft::broker
