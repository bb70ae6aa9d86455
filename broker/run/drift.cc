#include "broker/run/drift.h"

#include <algorithm>
#include <utility>

namespace weft::broker {
namespace {
constexpr int kLaterAfterMove = 2, kLaterAfterDisappointment = 8;
constexpr double kAsBefore = 0.9;
}  // namespace

void Drift::begin(Instant now, uint64_t committed) {
  since_ = now;
  committed_ = committed;
}

bool Drift::is_time(Instant now, uint64_t committed, bool may_grow) {
  const Duration after = may_grow ? std::min(options_.grow_after, look_after_) : look_after_;
  if (options_.look_after <= Duration{} || now - since_ < after ||
      committed < committed_ + options_.steps_min)
    return false;
  step_seconds_ = seconds(now - since_) / static_cast<double>(committed - committed_);
  begin(now, committed);
  return true;
}

std::optional<double> Drift::take_disappointment() {
  const std::optional<double> before = std::exchange(before_, std::nullopt);
  if (!before) return std::nullopt;
  if (step_seconds_ < kAsBefore * *before) {
    look_after_ = std::max(look_after_ / kLaterAfterMove, options_.look_after);
    return std::nullopt;
  }
  look_after_ = std::min(look_after_ * kLaterAfterDisappointment, options_.look_after_max);
  return before;
}

bool Drift::take_news(const Belief& belief) { return std::exchange(belief_, belief) != belief; }

// What was measured stands for the step as it is: the prediction says what share of it is left.
bool Drift::pays(Duration as_it_is, Duration as_planned, uint64_t steps_left, double cost, bool grows) const {
  const double is = seconds(as_it_is), planned = seconds(as_planned);
  if (!(planned > 0) || is < (grows ? options_.growth_min : options_.gain_min) * planned) return false;
  const double won = step_seconds_ * (1 - planned / is) * static_cast<double>(steps_left);
  return won >= options_.pay_min * cost;
}

void Drift::moves() {
  before_ = step_seconds_;
  look_after_ = std::min(look_after_ * kLaterAfterMove, options_.look_after_max);
}

}  // namespace weft::broker
