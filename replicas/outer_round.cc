#include "replicas/outer_round.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <optional>

#include "base/check.h"

namespace weft::replicas {

namespace {

// share * left / all, rounded down.
uint64_t share_of(const ReplicaTerms& terms, uint32_t replica, uint64_t left) {
  if (terms.shares.empty()) return terms.follows(replica) ? 0 : left / terms.makers();
  return terms.share(replica) * left / terms.steps_a_round();
}

// When the replica has made so many steps.
uint64_t made_by_all(const OuterRound& round, uint32_t replica, uint64_t index) {
  const std::vector<uint64_t>& dealt = round.dealt;
  if (dealt.empty()) return index * round.side_by_side;
  const uint64_t most = *std::max_element(dealt.begin(), dealt.end());
  const uint64_t all = std::accumulate(dealt.begin(), dealt.end(), uint64_t{0});
  return index * most / dealt[replica] * all / most;
}

void add(std::vector<StepRange>& ranges, StepRange range) {
  if (range.count == 0) return;
  if (!ranges.empty() && ranges.back().first + ranges.back().count == range.first)
    ranges.back().count += range.count;
  else
    ranges.push_back(range);
}

// Of steps that were dealt in this order, so many after the first ones.
void add_slice(std::vector<StepRange>& to, const std::vector<StepRange>& from, uint64_t skip,
               uint64_t count) {
  for (const StepRange& range : from) {
    const uint64_t skipped = std::min(skip, range.count), taken = std::min(count, range.count - skipped);
    add(to, {range.first + skipped, taken});
    skip -= skipped;
    count -= taken;
  }
}

std::optional<uint64_t> at_index(const std::vector<StepRange>& ranges, uint64_t index) {
  for (const StepRange& range : ranges) {
    if (index < range.count) return range.first + index;
    index -= range.count;
  }
  return std::nullopt;
}

std::vector<StepRange> taken_by(const OuterRound& round) {
  if (!round.taken.empty()) return round.taken;
  return {{round.steps_before + 1, round.steps_after() - round.steps_before}};
}

}  // namespace

uint64_t count_of(const std::vector<StepRange>& ranges) {
  uint64_t count = 0;
  for (const StepRange& range : ranges) count += range.count;
  return count;
}

std::vector<StepRange> joined(std::vector<StepRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const StepRange& a, const StepRange& b) { return a.first < b.first; });
  std::vector<StepRange> joined;
  for (const StepRange& range : ranges) add(joined, range);
  return joined;
}

uint64_t OuterRound::steps_after() const { return std::accumulate(steps.begin(), steps.end(), steps_before); }

bool is_overlapping(const ReplicaTerms& terms, uint64_t before, uint64_t after, uint64_t steps_in_all) {
  const uint64_t settled = terms.settle_every * terms.steps_a_round();
  return terms.overlap() && after < steps_in_all && after / settled == before / settled;
}

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
  round.overlaps = is_overlapping(terms, steps_before, round.steps_after(), steps_in_all);
  if (round.overlaps)
    round.fragment = static_cast<uint32_t>(steps_before / terms.steps_a_round() % terms.fragments);
  return round;
}

LocalStep locate(const OuterRound& round, uint64_t step) {
  WEFT_CHECK(step > round.steps_before && step <= round.steps_after());
  uint64_t index = step - round.steps_before - 1;
  uint32_t replica = 0;
  while (index >= round.steps[replica]) index -= round.steps[replica++];
  return {.replica = replica,
          .index = index,
          .scheduled = round.dealt_after() + made_by_all(round, replica, index) + 1,
          .ends_block = index + 1 == round.steps[replica]};
}

uint64_t samples_of(const OuterRound& round, uint64_t step) {
  WEFT_CHECK(step > round.steps_before && step <= round.steps_after());
  return at_index(round.taken, step - round.steps_before - 1).value_or(step);
}

OuterRound cut_after(const OuterRound& round, uint64_t step) {
  const LocalStep last = locate(round, step);
  OuterRound cut = round;
  if (step != round.steps_after()) cut.settle();
  cut.steps[last.replica] = last.index + 1;
  std::fill(cut.steps.begin() + last.replica + 1, cut.steps.end(), 0);
  if (!round.taken.empty()) {
    cut.taken.clear();
    add_slice(cut.taken, round.taken, 0, step - round.steps_before);
  }
  return cut;
}

void give_again(OuterRound& round, const std::vector<StepRange>& given_again, uint64_t taken) {
  if (taken >= count_of(given_again)) return;
  const uint64_t steps = round.steps_after() - round.steps_before;
  add_slice(round.taken, given_again, taken, steps);
  const uint64_t again = count_of(round.taken);
  add(round.taken, {round.steps_before + again + 1, steps - again});
}

Shortened leave_out(const OuterRound& round, const std::vector<uint32_t>& replicas) {
  Shortened left{.round = round};
  const std::vector<StepRange> taken = taken_by(round);
  left.round.taken.clear();
  uint64_t before = 0;
  for (uint32_t replica = 0; replica < round.steps.size(); ++replica) {
    const bool is_left = std::find(replicas.begin(), replicas.end(), replica) != replicas.end();
    const uint64_t steps = round.steps[replica];
    add_slice(is_left ? left.given_again : left.round.taken, taken, before, steps);
    before += steps;
    if (is_left) left.round.steps[replica] = 0;
  }
  left.given_again = joined(std::move(left.given_again));
  return left;
}

std::vector<StepRange> given_again_after(const std::vector<OuterRound>& rounds) {
  std::vector<StepRange> made, left;
  for (const OuterRound& round : rounds)
    for (const StepRange& range : taken_by(round)) made.push_back(range);
  uint64_t next = rounds.empty() ? 1 : rounds.front().steps_before + 1;
  for (const StepRange& range : joined(std::move(made))) {
    if (range.first > next) add(left, {next, range.first - next});
    next = std::max(next, range.first + range.count);
  }
  return left;
}

TakenSamples::TakenSamples(const std::vector<OuterRound>& rounds)
    : given_again_(given_again_after(rounds)), end_(rounds.empty() ? 0 : rounds.back().steps_after()) {
  std::copy_if(rounds.begin(), rounds.end(), std::back_inserter(rounds_),
               [](const OuterRound& round) { return !round.taken.empty(); });
}

uint64_t TakenSamples::of(uint64_t step) const {
  if (step > end_) {
    const auto at = at_index(given_again_, step - end_ - 1);
    return at.value_or(step);
  }
  const auto after =
      std::upper_bound(rounds_.begin(), rounds_.end(), step - 1,
                       [](uint64_t before, const OuterRound& round) { return before < round.steps_before; });
  if (after == rounds_.begin() || step > std::prev(after)->steps_after()) return step;
  return samples_of(*std::prev(after), step);
}

void TakenSamples::give_again(OuterRound& round) const {
  if (round.steps_before >= end_) replicas::give_again(round, given_again_, round.steps_before - end_);
}

bool is_valid(const Inherited& inherited) {
  const size_t count = inherited.sets.size();
  const auto are_there = [&](const std::vector<uint32_t>& replicas) {
    return std::all_of(replicas.begin(), replicas.end(), [&](uint32_t replica) { return replica < count; });
  };
  const auto are_some = [&](const std::vector<uint32_t>& replicas) {
    const bool ascend =
        std::adjacent_find(replicas.begin(), replicas.end(), std::greater_equal<>()) == replicas.end();
    return are_there(replicas) && ascend;
  };
  return count <= kReplicasMax && are_there(inherited.sets) && are_some(inherited.debtless) &&
         are_some(inherited.left_out);
}

}  // namespace weft::replicas
