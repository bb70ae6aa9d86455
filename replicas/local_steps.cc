#include "replicas/local_steps.h"

#include <algorithm>
#include <functional>

#include "base/check.h"

namespace weft::replicas {

namespace {

uint64_t full_rounds(const LocalSteps& local) {
  return (local.steps - local.begun_after) / local.terms.steps_a_round();
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

uint64_t most_of(const OuterRound& round) {
  return *std::max_element(round.steps.begin(), round.steps.end());
}

// How many of a replica's own steps of a round are made in the first `inner` of its inner steps.
uint64_t made_in(const LocalSteps& local, const OuterRound& round, uint32_t replica, uint64_t inner) {
  const uint64_t own = round.steps[replica];
  if (local.terms.shares.empty()) return std::min(inner, own);
  const uint64_t most = most_of(round);
  return std::min(own, (inner * own + most - 1) / most);
}

OuterRound round_after(const LocalSteps& local, uint64_t steps_before) {
  OuterRound round = next_round(local.terms, steps_before, local.steps);
  give_again(round, local.given_again, steps_before - local.begun_after);
  return round;
}

// What was dealt before and not made: of as many steps as they are more than were made.
bool can_be_given_again(const LocalSteps& local) {
  if (local.given_again.size() > kStepRangesMax) return false;
  uint64_t next = 1;
  for (const StepRange& range : local.given_again) {
    if (range.count == 0 || range.first < next || range.first > local.steps || range.count > local.steps)
      return false;
    next = range.first + range.count;
  }
  const uint64_t dealt = local.begun_after + count_of(local.given_again);
  return dealt <= local.steps && next <= dealt + 1;
}

// Of the replicas, and not all of them.
bool are_some(const ReplicaTerms& terms) {
  const auto& followers = terms.followers;
  return std::adjacent_find(followers.begin(), followers.end(), std::greater_equal<>()) == followers.end() &&
         followers.size() < terms.count && (followers.empty() || followers.back() < terms.count);
}

}  // namespace

bool is_valid(const LocalSteps& local) {
  constexpr uint64_t kMax = uint64_t{1} << 48;
  const ReplicaTerms& terms = local.terms;
  if (!terms.are_local() || terms.every > kMax / kReplicasMax || terms.count < 1 ||
      terms.count > kReplicasMax || terms.settle_every < 1 || terms.settle_every > kSettleEveryMax ||
      terms.fragments < 1 || terms.fragments > (terms.overlap() ? kFragmentsMax : 1) || local.steps > kMax ||
      local.begun_after > local.steps || !are_some(terms) || !can_be_given_again(local))
    return false;
  if (terms.shares.empty()) return true;
  const auto [least, most] = std::minmax_element(terms.shares.begin(), terms.shares.end());
  return terms.shares.size() == terms.count && *least >= 1 && *most == terms.every &&
         *least * kShareRatioMax >= *most && *most <= kShareMax;
}

uint64_t last_inner_step(const LocalSteps& local) {
  const uint64_t full = full_rounds(local), before = local.begun_after + full * local.terms.steps_a_round();
  const uint64_t inner = local.begun_after + full * local.terms.every;
  return before == local.steps ? inner : inner + most_of(next_round(local.terms, before, local.steps));
}

bool ends_round(const LocalSteps& local, uint64_t inner) {
  return inner == last_inner_step(local) || (inner - local.begun_after) % local.terms.every == 0;
}

uint64_t next_end(const LocalSteps& local, uint64_t inner) {
  const uint64_t made = inner - local.begun_after, every = local.terms.every;
  return std::min(local.begun_after + (made + every - 1) / every * every, last_inner_step(local));
}

bool agrees_after(const LocalSteps& local, uint64_t inner) {
  if (!ends_round(local, inner)) return false;
  if (!local.terms.overlap() || inner == local.begun_after || inner == last_inner_step(local)) return true;
  const uint64_t dealt = local.terms.steps_a_round();
  const uint64_t before = local.begun_after + place_of(local, inner).round * dealt;
  return !is_overlapping(local.terms, before, before + dealt, local.steps);
}

uint64_t next_agreement(const LocalSteps& local, uint64_t inner) {
  uint64_t end = next_end(local, inner);
  while (!agrees_after(local, end)) end = next_end(local, end + 1);
  return end;
}

uint64_t agreement_before(const LocalSteps& local, uint64_t inner) {
  uint64_t end = local.begun_after + place_of(local, inner).round * local.terms.every;
  while (!agrees_after(local, end)) end -= local.terms.every;
  return end;
}

OuterRound round_of(const LocalSteps& local, uint64_t inner) {
  return round_after(local, local.begun_after + place_of(local, inner).round * local.terms.steps_a_round());
}

uint64_t steps_after(const LocalSteps& local, uint64_t inner) {
  if (inner == local.begun_after) return inner;
  const OuterRound round = round_of(local, inner);
  const uint64_t index = place_of(local, inner).index;
  uint64_t steps = round.steps_before;
  for (uint32_t replica = 0; replica < local.terms.count; ++replica)
    steps += made_in(local, round, replica, index + 1);
  return steps;
}

uint64_t own_steps_after(const LocalSteps& local, uint32_t replica, uint64_t inner) {
  if (inner == local.begun_after) return 0;
  const Place place = place_of(local, inner);
  return place.round * local.terms.share(replica) +
         made_in(local, round_of(local, inner), replica, place.index + 1);
}

std::vector<uint64_t> steps_since(const LocalSteps& local, uint64_t inner, uint32_t fragment) {
  uint64_t before = local.begun_after + place_of(local, inner).round * local.terms.every;
  while (!agrees_after(local, before) && !round_of(local, before).is_about(fragment))
    before -= local.terms.every;
  std::vector<uint64_t> steps;
  for (uint32_t replica = 0; replica < local.terms.count; ++replica)
    steps.push_back(own_steps_after(local, replica, inner) - own_steps_after(local, replica, before));
  return steps;
}

std::optional<OwnStep> own_step(const LocalSteps& local, uint32_t replica, uint64_t inner) {
  const OuterRound round = round_of(local, inner);
  const uint64_t index = place_of(local, inner).index;
  const uint64_t made = made_in(local, round, replica, index);
  if (made_in(local, round, replica, index + 1) == made) return std::nullopt;
  uint64_t step = round.steps_before + made + 1;
  for (uint32_t before = 0; before < replica; ++before) step += round.steps[before];
  return OwnStep{samples_of(round, step), locate(round, step).scheduled};
}

uint64_t first_left_out(const LocalSteps& local, uint64_t inner) {
  const uint64_t before = local.begun_after + place_of(local, inner).round * local.terms.every;
  return agrees_after(local, before) ? inner : before;
}

Without without(const LocalSteps& local, uint64_t inner, const std::vector<uint32_t>& left_out) {
  Without made;
  std::vector<StepRange>& again = made.given_again;
  const auto add = [&](const OuterRound& dealt) {
    Shortened left = leave_out(dealt, left_out);
    if (local.terms.fragments > 1) left.round.absent = left_out;
    again.insert(again.end(), left.given_again.begin(), left.given_again.end());
    if (made.rounds.empty()) return made.rounds.push_back(std::move(left.round));
    left.round.steps_before = made.made();
    left.round.void_before = dealt.steps_before - made.made();
    made.rounds.push_back(std::move(left.round));
  };
  const OuterRound last = round_of(local, inner);
  if (const uint64_t first = first_left_out(local, inner); first != inner) add(round_of(local, first));
  add(last);
  made.rounds.back().settle();
  // Those of these rounds, and those that no round has come to yet.
  uint64_t dealt = last.steps_after() - local.begun_after;
  for (const StepRange& range : local.given_again) {
    const uint64_t skipped = std::min(dealt, range.count);
    if (skipped < range.count) again.push_back({range.first + skipped, range.count - skipped});
    dealt -= skipped;
  }
  again = joined(std::move(again));
  // The last ones may be whose turn it is anyway.
  while (!again.empty() && made.made() + count_of(again) == again.back().first + again.back().count - 1)
    again.pop_back();
  return made;
}

namespace {

// Those of one plan, until so many steps are made: without these replicas in the last one, where there are
// any, and in the one before that overlaps it.
void add_rounds(const Begun& plan, uint64_t end, const std::vector<uint32_t>& left_out,
                std::vector<OuterRound>& rounds) {
  constexpr size_t kRoundsMax = 1'000'000;
  const LocalSteps& local = plan.local;
  uint64_t before = local.begun_after, inner = local.begun_after;
  // So many steps were dealt, of which not all count.
  while (before < (left_out.empty() ? end : local.steps) && rounds.size() < kRoundsMax) {
    inner = next_end(local, inner + 1);
    OuterRound round = round_after(local, before);
    if (before == local.begun_after) round.inherited = plan.inherited;
    before = round.steps_after();
    rounds.push_back(std::move(round));
    if (left_out.empty()) continue;
    Without made = without(local, inner, left_out);
    if (made.made() < end) continue;
    const size_t from = rounds.size() - made.rounds.size();
    made.rounds.front().inherited = rounds[from].inherited;
    const bool owed = std::any_of(left_out.begin(), left_out.end(),
                                  [&](uint32_t replica) { return !local.terms.follows(replica); });
    if (owed)  // some went with them
      for (OuterRound& each : made.rounds) each.inherited.returns_are_lost = true;
    std::move(made.rounds.begin(), made.rounds.end(), rounds.begin() + static_cast<ptrdiff_t>(from));
    return;
  }
}

}  // namespace

std::vector<OuterRound> rounds_of(const std::vector<Begun>& plans, uint64_t made, bool settled) {
  std::vector<const Begun*> held;
  for (const Begun& plan : plans) {
    while (!held.empty() && held.back()->local.begun_after >= plan.local.begun_after) held.pop_back();
    held.push_back(&plan);
  }
  std::vector<OuterRound> rounds;
  for (size_t i = 0; i < held.size(); ++i) {
    const LocalSteps& plan = held[i]->local;
    const Begun* next = i + 1 < held.size() ? held[i + 1] : nullptr;
    const uint64_t end = std::min({made, plan.steps, next != nullptr ? next->local.begun_after : made});
    if (!rounds.empty() && rounds.back().steps_after() != plan.begun_after) break;
    const size_t before = rounds.size();
    const std::vector<uint32_t> none;
    add_rounds(*held[i], end, next != nullptr ? next->inherited.left_out : none, rounds);
    if (rounds.size() > before && rounds.back().steps_after() == end && (settled || next != nullptr))
      rounds.back().settle();
  }
  return rounds;
}

}  // namespace weft::replicas
