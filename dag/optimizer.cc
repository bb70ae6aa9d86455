#include "dag/optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/check.h"
#include "base/glob.h"

namespace weft::dag {

double scheduled_learning_rate(const ScheduleSpec& schedule, double learning_rate, uint64_t step,
                               uint64_t steps) {
  WEFT_CHECK(step >= 1 && step <= steps);
  const uint64_t warmup = schedule.warmup_steps;
  // Before the type is looked at: a constant schedule warms up too.
  if (step <= warmup) return learning_rate * static_cast<double>(step) / static_cast<double>(warmup);
  const double f = schedule.final_fraction;
  const double u = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  switch (schedule.type) {
    case ScheduleType::Constant:
      return learning_rate;
    case ScheduleType::Linear:
      return learning_rate * (1 - (1 - f) * u);
    case ScheduleType::Cosine:
      return learning_rate * (f + (1 - f) * (1 + std::cos(std::numbers::pi * u)) / 2);
  }
  return learning_rate;
}

std::optional<size_t> group_of(const OptimizerSpec& optimizer, std::string_view parameter) {
  for (size_t i = 0; i < optimizer.groups.size(); ++i)
    for (const std::string& pattern : optimizer.groups[i].parameters)
      if (matches_glob(pattern, parameter)) return i;
  return std::nullopt;
}

GroupUpdate update_of_group(const OptimizerSpec& optimizer, const UpdateStep& step,
                            std::optional<size_t> group) {
  GroupUpdate update{optimizer, step};
  update.optimizer.groups.clear();
  if (!group) return update;
  const ParameterGroup& of = optimizer.groups.at(*group);
  update.optimizer.weight_decay = of.weight_decay.value_or(optimizer.weight_decay);
  update.step.learning_rate *= of.learning_rate_factor;
  return update;
}

double clip_factor(double clip_norm, double norm) {
  if (clip_norm <= 0) return 1;
  const double factor = clip_norm / (norm + 1e-6);
  // torch.clamp keeps NaN; std::min(1, NaN) would not.
  if (std::isnan(factor)) return factor;
  return std::min(1.0, factor);
}

}  // namespace weft::dag
