#include "replicas/outer_round.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace weft::replicas {

uint64_t OuterRound::steps_after() const { return std::accumulate(steps.begin(), steps.end(), steps_before); }

OuterRound next_round(const ReplicaTerms& terms, uint64_t steps_before, uint64_t steps_in_all) {
  WEFT_CHECK(terms.are_local() && terms.count >= 1 && steps_before < steps_in_all);
  const uint64_t left = steps_in_all - steps_before;
  const uint64_t share = left / terms.count, more = left % terms.count;
  OuterRound round{.steps_before = steps_before};
  for (uint32_t replica = 0; replica < terms.count; ++replica)
    round.steps.push_back(share >= terms.every ? terms.every : share + (replica < more ? 1 : 0));
  round.side_by_side = static_cast<uint32_t>(
      std::count_if(round.steps.begin(), round.steps.end(), [](uint64_t steps) { return steps > 0; }));
  return round;
}

LocalStep locate(const OuterRound& round, uint64_t step) {
  WEFT_CHECK(step > round.steps_before && step <= round.steps_after());
  uint64_t index = step - round.steps_before - 1;
  uint32_t replica = 0;
  while (index >= round.steps[replica]) index -= round.steps[replica++];
  return {.replica = replica,
          .index = index,
          .scheduled = round.steps_before + index * round.side_by_side + 1,
          .ends_block = index + 1 == round.steps[replica]};
}

OuterRound cut_after(const OuterRound& round, uint64_t step) {
  const LocalStep last = locate(round, step);
  OuterRound cut = round;
  cut.steps[last.replica] = last.index + 1;
  std::fill(cut.steps.begin() + last.replica + 1, cut.steps.end(), 0);
  return cut;
}

}  // namespace weft::replicas
