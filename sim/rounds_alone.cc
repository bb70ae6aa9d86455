#include "sim/rounds_alone.h"

#include <algorithm>
#include <utility>

#include "replicas/agreement.h"
#include "sim/agreement.h"
#include "sim/plans.h"

namespace weft::sim {

using replicas::OuterRound;

RoundsAlone::RoundsAlone(const JobSpec& job)
    : job_(job),
      terms_(replica_terms_of(job)),
      alone_(job),
      names_(agreed_names(*graphs_of(job))),
      fragments_(fragments_of(job)) {
  const Alone::State& begun = alone_.after(0).state;
  start_.own.resize(1);
  for (const std::string& name : names_) {
    start_.shared[name].agreed = begun.at(name).value;
    start_.own.front().tensors[name] = {};
  }
}

void RoundsAlone::inherit(State& state, const replicas::Inherited& inherited) {
  const std::vector<Own> before = state.own;
  for (size_t replica = 0; replica < std::min(state.own.size(), inherited.sets.size()); ++replica) {
    const Own& set = before.at(inherited.sets[replica]);
    state.own[replica].updates = set.updates;
    for (auto& [name, tensor] : state.own[replica].tensors)
      std::ranges::copy(set.tensors.at(name).slots, tensor.slots);
  }
  for (const uint32_t replica : inherited.debtless)
    if (replica < state.own.size())
      for (auto& [name, tensor] : state.own[replica].tensors) tensor.residue = 0;
  if (inherited.returns_are_lost)
    for (auto& [name, shared] : state.shared) shared.return_residue = 0;
}

// Those that are new go on with the slots of the first one, and owe nothing.
void RoundsAlone::become(State& state, size_t replicas) {
  Own first = state.own.front();
  for (auto& [name, tensor] : first.tensors) tensor.residue = 0;
  state.own.resize(replicas, first);
}

RoundsAlone::State RoundsAlone::begun(const Rounds& rounds, const replicas::Inherited& inherited,
                                      size_t replicas) {
  State state = after(rounds);
  inherit(state, inherited);
  become(state, replicas);
  return state;
}

Alone::State RoundsAlone::make_steps(const State& from, const OuterRound& round, uint32_t replica,
                                     std::vector<Made>& made) {
  const Own& own = from.own.at(replica);
  Alone::State state;
  for (const std::string& name : names_) {
    const OwnTensor& tensor = own.tensors.at(name);
    state[name].value = tensor.now.value_or(tensor.start.value_or(from.shared.at(name).agreed));
    std::ranges::copy(own.tensors.at(name).slots, state[name].slots);
  }
  uint64_t step = round.steps_before;
  for (uint32_t before = 0; before < replica; ++before) step += round.steps[before];
  for (uint64_t index = 0; index < round.steps[replica]; ++index) {
    ++step;
    const uint64_t number = number_of_local_update(own.updates + index + 1, locate(round, step).scheduled);
    Alone::Step next = alone_.make_step(state, samples_of(round, step), number);
    made.push_back({next.loss, next.norm});
    state = std::move(next.state);
  }
  return state;
}

RoundsAlone::State RoundsAlone::make_round(State state, const OuterRound& round) {
  inherit(state, round.inherited);
  become(state, round.steps.size());
  std::vector<Own> own = state.own;
  for (uint32_t replica = 0; replica < round.steps.size(); ++replica) {
    if (round.steps[replica] == 0) continue;
    std::vector<Made> made;
    const Alone::State now = make_steps(state, round, replica, made);
    own[replica].updates += round.steps[replica];
    for (uint32_t fragment = 0; fragment < terms_.fragments; ++fragment)
      own[replica].steps[fragment] += round.steps[replica];
    for (const std::string& name : names_) {
      OwnTensor& tensor = own[replica].tensors.at(name);
      std::ranges::copy(now.at(name).slots, tensor.slots);
      tensor.now = now.at(name).value;
    }
  }
  state.own = std::move(own);
  for (uint32_t number = 0; number < names_.size(); ++number) agree(state, round, number);
  for (Own& each : state.own)
    for (auto& [fragment, steps] : each.steps)
      if (round.is_about(fragment)) steps = 0;
  return state;
}

// As it is read.
uint64_t RoundsAlone::take_mean(State& state, const OuterRound& round, uint32_t number) const {
  const std::string& name = names_[number];
  Shared& shared = state.shared.at(name);
  HashMean mean;
  for (uint32_t replica = 0; replica < state.own.size(); ++replica) {
    Own& own = state.own[replica];
    OwnTensor& tensor = own.tensors.at(name);
    const uint64_t steps = own.steps[fragments_[number]];
    if (steps == 0 || std::ranges::binary_search(round.absent, replica)) continue;
    const PassedHash passed =
        pass_through(terms_.codec, draw_of(job_.seed, round.dealt_after(), number, replica),
                     difference_of(*tensor.now, tensor.start.value_or(shared.agreed)), tensor.residue);
    tensor.residue = passed.residue;
    tensor.read = passed.read;
    mean.add(passed.read, steps * job_.microbatches * job_.microbatch_size);
  }
  const PassedHash passed =
      pass_through(terms_.codec, draw_of(job_.seed, round.dealt_after(), number, replicas::kOwner),
                   mean.take(), shared.return_residue);
  shared.return_residue = passed.residue;
  return passed.read;
}

void RoundsAlone::agree(State& state, const OuterRound& round, uint32_t number) const {
  const std::string& name = names_[number];
  Shared& shared = state.shared.at(name);
  const bool is_about = round.is_about(fragments_[number]);
  const std::optional<uint64_t> read =
      is_about ? std::optional(take_mean(state, round, number)) : std::nullopt;
  const bool has_come = shared.overlapped.has_value();
  if (has_come)
    take_outer_step(terms_.outer, *std::exchange(shared.overlapped, std::nullopt), shared.momentum,
                    shared.agreed);
  if (is_about && round.overlaps) shared.overlapped = read;
  if (is_about && !round.overlaps) take_outer_step(terms_.outer, *read, shared.momentum, shared.agreed);
  for (Own& own : state.own) {
    OwnTensor& tensor = own.tensors.at(name);
    if (!is_about) {
      if (has_come && tensor.now && tensor.start)
        tensor.now = move_on(*tensor.now, *tensor.start, shared.agreed);
      if (has_come) tensor.start.reset();
      continue;
    }
    tensor.start.reset();
    tensor.now.reset();
    if (!round.overlaps) continue;
    uint64_t momentum = shared.momentum, start = shared.agreed;
    take_outer_step(terms_.outer, tensor.read, momentum, start);
    tensor.start = start;
  }
}

const RoundsAlone::State& RoundsAlone::after(const Rounds& rounds) {
  size_t known = 0;
  while (known < std::min(done_.size(), rounds.size()) && done_[known].round == rounds[known]) ++known;
  if (known < rounds.size()) done_.resize(known);
  while (done_.size() < rounds.size()) {
    const OuterRound& round = rounds[done_.size()];
    const State& before = done_.empty() ? start_ : done_.back().after;
    done_.push_back({round, make_round(before, round)});
  }
  return rounds.empty() ? start_ : done_[rounds.size() - 1].after;
}

std::vector<RoundsAlone::Made> RoundsAlone::steps_of(const Rounds& before, const OuterRound& round,
                                                     uint32_t replica) {
  Steps& last = steps_[replica];
  if (!last.made.empty() && last.before == before && last.round == round) return last.made;
  State state = begun(before, round.inherited, round.steps.size());
  last = {before, round, replica, {}};
  (void)make_steps(state, round, replica, last.made);
  return last.made;
}

std::map<std::string, double> RoundsAlone::evaluation(const Rounds& rounds) {
  Alone::State state;
  for (const auto& [name, shared] : after(rounds).shared) state[name].value = shared.agreed;
  return alone_.evaluate(state);
}

}  // namespace weft::sim
