#include "broker/run/inner_steps.h"

#include <algorithm>

namespace weft::broker {

uint64_t InnerSteps::clamped(uint64_t inner) const {
  return std::clamp(inner, local_->begun_after, last_inner_step(*local_));
}

uint64_t InnerSteps::made(uint64_t inner) const {
  return local_ && inner >= local_->begun_after ? steps_after(*local_, clamped(inner)) : inner;
}

std::optional<replicas::OwnStep> InnerSteps::own(uint32_t replica, uint64_t inner) const {
  if (!local_) return replicas::OwnStep{.step = inner, .scheduled = inner};
  if (replica >= replicas() || inner <= local_->begun_after || inner > last_inner_step(*local_))
    return std::nullopt;
  return own_step(*local_, replica, inner);
}

uint64_t InnerSteps::idle(uint32_t replica, uint64_t inner) const {
  if (!local_ || replica >= replicas() || inner <= local_->begun_after) return 0;
  const uint64_t until = clamped(inner);
  return until - local_->begun_after - own_steps_after(*local_, replica, until);
}

bool InnerSteps::is_whole(uint64_t inner) const {
  return !local_ || inner <= local_->begun_after || agrees_after(*local_, clamped(inner));
}

bool InnerSteps::ends_round(uint64_t inner) const {
  return local_ && inner > local_->begun_after && replicas::ends_round(*local_, clamped(inner));
}

uint64_t InnerSteps::next_whole(uint64_t inner) const {
  return local_ && inner > local_->begun_after ? next_agreement(*local_, clamped(inner)) : inner;
}

uint64_t InnerSteps::next_end(uint64_t inner) const {
  return local_ && inner > local_->begun_after ? replicas::next_end(*local_, clamped(inner)) : inner;
}

bool InnerSteps::is_agreed(uint64_t end, uint64_t committed) const {
  return (is_whole(end) ? end : next_end(end + 1)) <= committed;
}

std::optional<uint64_t> InnerSteps::find(uint64_t step, uint64_t made) const {
  if (!local_) return step;
  if (made == local_->begun_after) return made;
  const bool is_here = step > local_->begun_after && step <= last_inner_step(*local_);
  if (is_here && agrees_after(*local_, step) && steps_after(*local_, step) == made) return step;
  return std::nullopt;
}

bool InnerSteps::is_due(uint64_t every, uint64_t inner) const {
  if (!local_) return inner % every == 0;
  if (inner <= local_->begun_after || !is_whole(inner)) return false;
  const uint64_t before = made(agreement_before(*local_, clamped(inner)));
  return made(inner) / every > before / every;
}

}  // namespace weft::broker
