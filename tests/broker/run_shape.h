// A planned run for tests of runs and their parts: stages without links, of one tensor each.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "broker/run/planned_run.h"
#include "tests/broker/programs.h"

namespace weft::test {

struct Shape {
  uint32_t stages = 2;
  uint64_t steps = 40;
  int64_t stage_bytes = 0;   // that a stage trains
  int64_t frozen_bytes = 0;  // of a weight beside that, which never changes
  double predicted_step = 0.1;
  std::optional<uint64_t> checkpoint_steps = std::nullopt;
  double clip_norm = 0;
  dag::OnDivergence on_divergence = dag::OnDivergence::Stop;
  std::vector<uint64_t> empty_steps{};
  uint32_t forward_microbatches = 0;
  dag::LossTerms loss_terms{};
  bool compresses = false;
  uint32_t exact_replicas = 1;  // of a stage each, which add each step's gradients; then as many as `stages`
  bool shares_slots = false;    // these do; the first owns all
  bool apart = false;  // the first stage counts the labels, the second has the losses that evaluation takes
};

inline std::shared_ptr<const broker::PlannedRun> plan_of(const Shape& shape) {
  auto plan = std::make_shared<broker::PlannedRun>();
  plan->training.steps = shape.steps;
  plan->training.batch_size = 8;
  plan->microbatches = 2;
  plan->training.microbatch_size = 4;
  plan->parameter_count = shape.stages;
  plan->borders.checkpoint.steps = shape.checkpoint_steps;
  plan->training.clip_norm = shape.clip_norm;
  plan->training.on_divergence = shape.on_divergence;
  plan->training.empty_steps = shape.empty_steps;
  plan->forward_microbatches = shape.forward_microbatches;
  plan->forward_samples = uint64_t{shape.forward_microbatches} * plan->training.microbatch_size - 1;
  plan->masked = plan->accuracy = shape.forward_microbatches != 0;
  plan->loss_terms = shape.loss_terms;
  plan->predicted_step =
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(shape.predicted_step));
  const bool is_exact = shape.exact_replicas > 1;
  if (is_exact) {
    plan->exact_ranges.assign(shape.exact_replicas, 1);
    plan->training.gradient_ranges = shape.exact_replicas;
    plan->parameter_count = 1;
    plan->microbatches = shape.exact_replicas;
    plan->training.batch_size = plan->training.microbatch_size * plan->microbatches;
  }
  for (uint32_t s = 0; s < shape.stages; ++s) {
    auto assignment = std::make_shared<proto::AssignStage>();
    if (is_exact) {
      assignment->exact = proto::ExactTerms{plan->exact_ranges, {}, {}, shape.shares_slots};
      if (shape.shares_slots)
        assignment->exact->tensors = {{0, "w0", 0, std::vector<uint32_t>(shape.exact_replicas, 0)}};
      assignment->seat = {0, s};
      assignment->training = plan->training;
    }
    assignment->training.on_divergence = shape.on_divergence;
    assignment->training.empty_steps = shape.empty_steps;
    const proto::TensorReference trained{dag::of_initializer("w" + std::to_string(is_exact ? 0 : s)),
                                         {dag::DType::F32, dag::Shape({shape.stage_bytes / 4})},
                                         {}};
    assignment->tensors.push_back(trained);
    if (shape.frozen_bytes > 0)
      assignment->tensors.push_back({dag::of_initializer("frozen" + std::to_string(s)),
                                     {dag::DType::F32, dag::Shape({shape.frozen_bytes / 4})},
                                     {}});
    // Each says the losses, so that one report does for all.
    const size_t terms = shape.loss_terms.count();
    assignment->programs.push_back(
        make_program(proto::ProgramKind::Train,
                     {.trained = {trained}, .losses = 1, .codec = shape.compresses ? "int4" : ""}));
    const bool counts = !shape.apart || s == 0, loses = !shape.apart || s == 1;
    assignment->programs.push_back(
        make_program(proto::ProgramKind::Evaluate, {.losses = loses ? terms : 0,
                                                    .corrects = loses ? size_t{1} : 0,
                                                    .counteds = counts ? shape.loss_terms.counted() : 0}));
    plan->stages.push_back({{.parameters = {is_exact ? 0 : s}}, assignment});
  }
  return plan;
}

// What a stage's copy of its state holds: of plan_of.
inline std::vector<proto::TensorReference> copy_of(const Shape& shape, uint32_t stage) {
  return {plan_of(shape)->stages[stage].assignment->tensors.front()};
}

}  // namespace weft::test
