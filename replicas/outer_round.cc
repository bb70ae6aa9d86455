#include "replicas/outer_round.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "base/check.h"

namespace weft::replicas {

namespace {

// share * left / all, rounded down.
uint64_t share_of(const ReplicaTerms& terms, uint32_t replica, uint64_t left) {
  return terms.shares.empty() ? left / terms.count : terms.shares[replica] * left / terms.steps_a_round();
}

// When the replica has made so many steps.
uint64_t made_by_all(const OuterRound& round, uint32_t replica, uint64_t index) {
  const std::vector<uint64_t>& dealt = round.dealt;
  if (dealt.empty()) return index * round.side_by_side;
  const uint64_t most = *std::max_element(dealt.begin(), dealt.end());
  const uint64_t all = std::accumulate(dealt.begin(), dealt.end(), uint64_t{0});
  return index * most / dealt[replica] * all / most;
}

}  // namespace

uint64_t OuterRound::steps_after() const { return std::accumulate(steps.begin(), steps.end(), steps_before); }

OuterRound next_round(const ReplicaTerms& terms, uint64_t steps_before, uint64_t steps_in_all) {
  WEFT_CHECK(terms.are_local() && terms.count >= 1 && steps_before < steps_in_all);
  const uint64_t left = std::min(steps_in_all - steps_before, terms.steps_a_round());
  OuterRound round{.steps_before = steps_before};
  uint64_t more = left;
  for (uint32_t replica = 0; replica < terms.count; ++replica)
    more -= round.steps.emplace_back(share_of(terms, replica, left));
  for (uint32_t replica = 0; more > 0; ++replica)
    if (round.steps[replica] < terms.share(replica)) ++round.steps[replica], --more;
  if (!terms.shares.empty()) round.dealt = round.steps;
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
          .scheduled = round.steps_before + made_by_all(round, replica, index) + 1,
          .ends_block = index + 1 == round.steps[replica]};
}

OuterRound cut_after(const OuterRound& round, uint64_t step) {
  const LocalStep last = locate(round, step);
  OuterRound cut = round;
  cut.steps[last.replica] = last.index + 1;
  std::fill(cut.steps.begin() + last.replica + 1, cut.steps.end(), 0);
  return cut;
}

bool is_valid(const Inherited& inherited) {
  const size_t count = inherited.sets.size();
  const auto are_there = [&](const std::vector<uint32_t>& replicas) {
    return std::all_of(replicas.begin(), replicas.end(), [&](uint32_t replica) { return replica < count; });
  };
  const auto& debtless = inherited.debtless;
  const bool ascend =
      std::adjacent_find(debtless.begin(), debtless.end(), std::greater_equal<>()) == debtless.end();
  return count <= kReplicasMax && are_there(inherited.sets) && are_there(debtless) && ascend;
}

}  // namespace weft::replicas
