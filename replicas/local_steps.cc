#include "replicas/local_steps.h"

#include <algorithm>

#include "base/check.h"

namespace weft::replicas {

namespace {

uint64_t steps_a_round(const LocalSteps& local) { return local.terms.every * local.terms.count; }
uint64_t full_rounds(const LocalSteps& local) {
  return (local.steps - local.begun_after) / steps_a_round(local);
}

struct Place {
  uint64_t round = 0;
  uint64_t index = 0;  // in it, from 0
};
Place place_of(const LocalSteps& local, uint64_t inner) {
  WEFT_CHECK(inner > local.begun_after && inner <= last_inner_step(local));
  const uint64_t made = inner - local.begun_after - 1;
  const uint64_t round = std::min(made / local.terms.every, full_rounds(local));
  return {round, made - round * local.terms.every};
}

}  // namespace

bool is_valid(const LocalSteps& local) {
  constexpr uint64_t kMax = uint64_t{1} << 48;
  return local.terms.are_local() && local.terms.every <= kMax / kReplicasMax && local.terms.count >= 1 &&
         local.terms.count <= kReplicasMax && local.steps <= kMax && local.begun_after <= local.steps;
}

uint64_t last_inner_step(const LocalSteps& local) {
  const uint64_t left = (local.steps - local.begun_after) % steps_a_round(local);
  return local.begun_after + full_rounds(local) * local.terms.every +
         (left + local.terms.count - 1) / local.terms.count;
}

bool agrees_after(const LocalSteps& local, uint64_t inner) {
  return inner == last_inner_step(local) || (inner - local.begun_after) % local.terms.every == 0;
}

uint64_t next_agreement(const LocalSteps& local, uint64_t inner) {
  const uint64_t made = inner - local.begun_after, every = local.terms.every;
  return std::min(local.begun_after + (made + every - 1) / every * every, last_inner_step(local));
}

OuterRound round_of(const LocalSteps& local, uint64_t inner) {
  return next_round(local.terms, local.begun_after + place_of(local, inner).round * steps_a_round(local),
                    local.steps);
}

uint64_t steps_after(const LocalSteps& local, uint64_t inner) {
  if (inner == local.begun_after) return inner;
  const OuterRound round = round_of(local, inner);
  const uint64_t index = place_of(local, inner).index;
  uint64_t steps = round.steps_before;
  for (const uint64_t own : round.steps) steps += std::min(own, index + 1);
  return steps;
}

std::optional<OwnStep> own_step(const LocalSteps& local, uint32_t replica, uint64_t inner) {
  const OuterRound round = round_of(local, inner);
  const uint64_t index = place_of(local, inner).index;
  if (index >= round.steps[replica]) return std::nullopt;
  uint64_t step = round.steps_before + index + 1;
  for (uint32_t before = 0; before < replica; ++before) step += round.steps[before];
  return OwnStep{step, locate(round, step).scheduled};
}

}  // namespace weft::replicas
