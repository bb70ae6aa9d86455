// The update rules: what a job may ask for, and the numbers that change from step to step. Arithmetic as
// PyTorch's torch.optim.{SGD,Adam,AdamW}; the kernels are the backends'.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace weft::dag {

enum class OptimizerType { Sgd, Adam, AdamW };
// How what a rule keeps beside a parameter is kept: as float32, or in eight bits (dag/slot_codes.h), which is
// another arithmetic: other bits, a quarter of the memory.
enum class SlotType : uint8_t { Float32, Int8 };

// Parameters with terms of their own, as PyTorch's parameter groups.
struct ParameterGroup {
  std::vector<std::string> parameters;  // names, or patterns (base/glob.h)
  std::optional<double> weight_decay;   // nothing: the optimizer's
  double learning_rate_factor = 1;      // times what the schedule says
};
inline constexpr size_t kParameterGroupsMax = 64;

struct OptimizerSpec {
  OptimizerType type = OptimizerType::Sgd;
  double learning_rate = 0;
  double weight_decay = 0;
  double momentum = 0;    // sgd
  double dampening = 0;   // sgd
  bool nesterov = false;  // sgd
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  std::vector<ParameterGroup> groups = {};  // a parameter belongs to the first that names it
  SlotType slots = SlotType::Float32;
};

// With g = gradient_scale * gradient:
//   sgd    g += weight_decay * p;  momentum: b = g at step 1, else b = momentum * b + (1 - dampening) * g;
//          g = nesterov ? g + momentum * b : b;  p -= learning_rate * g
//   adam   g += weight_decay * p;  adamw  p *= 1 - learning_rate * weight_decay (before the rest)
//          m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//          p -= learning_rate / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + epsilon)
struct UpdateStep {
  uint64_t step = 1;          // of the updates made, 1-based: a skipped step is none
  double learning_rate = 0;   // after the schedule
  double gradient_scale = 1;  // 1 / microbatches, times the clipping factor
};

// The place in OptimizerSpec::groups of the parameter's group; nothing: it has none.
std::optional<size_t> group_of(const OptimizerSpec& optimizer, std::string_view parameter);
// The rule and the step as the parameters of that group have them. REQUIRES: there is such a group.
struct GroupUpdate {
  OptimizerSpec optimizer;  // without groups
  UpdateStep step;
};
GroupUpdate update_of_group(const OptimizerSpec& optimizer, const UpdateStep& step,
                            std::optional<size_t> group);

enum class ScheduleType { Constant, Linear, Cosine };
struct ScheduleSpec {
  ScheduleType type = ScheduleType::Constant;
  uint64_t warmup_steps = 0;
  double final_fraction = 0;  // of the learning rate, at the last step
};

// SPEC: lr s/W while s <= W; then, with u = (s-W)/(S-W), linear lr (1 - (1-f) u), cosine lr (f + (1-f)(1 +
// cos(pi u))/2). step is 1-based, steps = S.
double scheduled_learning_rate(const ScheduleSpec& schedule, double learning_rate, uint64_t step,
                               uint64_t steps);

// min(1, clip_norm / (norm + 1e-6)); 1 when clip_norm <= 0 (no clipping). As in PyTorch, a norm of NaN gives
// NaN and an infinite one gives 0 (which makes NaN of the infinite gradients).
double clip_factor(double clip_norm, double norm);

// What becomes of a run whose step has a loss, gradient or running statistic that is not finite.
enum class OnDivergence : uint8_t {
  Stop,  // it goes back once, where somebody else may have been at fault, and ends
  // The step changes nothing that lasts: no update, no optimizer slot, no running statistic. As with
  // PyTorch's GradScaler the optimizer does not count it; schedule and data do.
  Skip,
};
// So many in a row end the run: it learns nothing any more.
inline constexpr uint64_t kSkippedInARowMax = 100;

}  // namespace weft::dag
