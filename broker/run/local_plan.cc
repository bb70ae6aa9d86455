#include "broker/run/local_plan.h"

#include "broker/run/inner_steps.h"

namespace weft::broker {

replicas::LocalSteps go_on_from(replicas::LocalSteps local, const std::optional<CheckpointCommitted>& point,
                                bool may_grow) {
  if (!point) return local;
  const bool is_inherited = point->local && !point->local->inherited.is_whole();
  const bool is_given_again = point->local && !point->local->given_again.empty();
  if (!may_grow && !is_inherited && !is_given_again && InnerSteps(local).find(point->step, point->made()))
    return local;
  local.begun_after = point->made();
  if (is_given_again) local.given_again = point->local->given_again;
  return local;
}

}  // namespace weft::broker
