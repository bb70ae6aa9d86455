#include "plan/search.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "plan/kinds.h"
#include "plan/placement.h"
#include "plan/polish.h"
#include "plan/refine.h"

namespace weft::plan {
namespace {

bool is_faster(const CandidatePlan& a, const CandidatePlan& b) { return a.step < b.step; }

std::vector<uint32_t> all_of(const std::vector<DeviceView>& devices) {
  std::vector<uint32_t> all(devices.size());
  std::iota(all.begin(), all.end(), 0u);
  return all;
}

Duration times(double factor, Duration step) {
  const double scaled = factor * static_cast<double>(step.count());
  return scaled < 9e18 ? Duration(static_cast<int64_t>(scaled)) : Duration::max();
}

// Of the candidates' steps the n-th shortest.
Duration nth_step(const std::vector<CandidatePlan>& candidates, size_t n) {
  if (candidates.size() < n) return Duration::max();
  std::vector<Duration> steps;
  steps.reserve(candidates.size());
  for (const CandidatePlan& candidate : candidates) steps.push_back(candidate.step);
  std::nth_element(steps.begin(), steps.begin() + static_cast<ptrdiff_t>(n - 1), steps.end());
  return steps[n - 1];
}

}  // namespace

Search::Search(Evaluator& evaluator, const NamedStrategy& strategy, ModelCache& models)
    : evaluator_(evaluator),
      strategy_(strategy),
      models_(models),
      request_(evaluator.request()),
      options_(evaluator.options()),
      devices_(request_.cluster.devices()),
      model_(evaluator.model()),
      coarse_(models.get(request_, std::max(options_.coarse_positions, 3 * request_.stages.value_or(8)))),
      pinned_(pinned_ranges(request_.pins, model_)) {}

std::optional<Found> Search::run() {
  for (const bool tight : {false, true}) {
    std::optional<Found> found = try_fleet(tight);
    if (!found) continue;
    if (strategy_.is_baseline) return found;
    polish_best(found->chosen);
    if (const uint32_t asked = request_.stages.value_or(1); asked > 1)
      found->fewer = look_for_fewer(found->chosen, asked);
    return found;
  }
  return std::nullopt;
}

// Whether the number of stages that was asked for costs speed, on the devices that would be used.
std::optional<Plan::Fewer> Search::look_for_fewer(const CandidatePlan& chosen, uint32_t asked) {
  Devices devices = all_of(devices_);
  if (is_of_one_kind(chosen))
    std::erase_if(devices, [&](uint32_t device) {
      return devices_[device].fingerprint != devices_[chosen.proposal.devices.front()].fingerprint;
    });
  Best fewer;
  try_numbers(fewer, devices, 1, asked - 1, /*tight=*/false);
  if (!fewer || seconds(fewer->step) >= options_.worth_a_stage * seconds(chosen.step)) return std::nullopt;
  return Plan::Fewer{fewer->proposal.devices, fewer->step};
}

bool Search::is_of_one_kind(const CandidatePlan& candidate) const {
  const auto& devices = candidate.proposal.devices;
  return std::all_of(devices.begin(), devices.end(), [&](uint32_t device) {
    return devices_[device].fingerprint == devices_[devices.front()].fingerprint;
  });
}

bool Search::is_of_one_site(const CandidatePlan& candidate) const {
  const auto& devices = candidate.proposal.devices;
  return std::all_of(devices.begin(), devices.end(), [&](uint32_t device) {
    return devices_[device].site == devices_[devices.front()].site;
  });
}

// Devices of one fingerprint, or all, as the job wants it.
std::optional<Found> Search::try_fleet(bool tight) {
  const auto found = [](Best best) {
    return best ? std::optional(Found{.chosen = std::move(*best)}) : std::nullopt;
  };
  const auto kinds = kinds_of(request_.cluster);
  Best mixed, alike;
  if (kinds.size() == 1 || request_.equal_bits == EqualBits::Ignore) {
    try_devices(mixed, all_of(devices_), tight);
    return found(std::move(mixed));
  }
  for (const auto& [fingerprint, devices] : kinds)
    if (devices.size() >= request_.stages.value_or(1)) try_devices(alike, devices, tight);
  if (request_.equal_bits == EqualBits::Require) return found(std::move(alike));
  try_devices(mixed, all_of(devices_), tight);
  if (!alike || !mixed) return found(std::move(alike ? alike : mixed));
  if (options_.worth_equal_bits * seconds(alike->step) <= seconds(mixed->step))
    return Found{.chosen = std::move(*alike), .mixed_step = mixed->step};
  return Found{.chosen = std::move(*mixed), .alike_step = alike->step};
}

void Search::try_devices(Best& best, const Devices& devices, bool tight) {
  const auto all = static_cast<uint32_t>(std::min<size_t>(devices.size(), model_.positions));
  if (strategy_.is_baseline)
    return try_stages(best, strategy_, devices, request_.stages.value_or(all), tight);
  if (request_.stages)
    try_stages(best, strategy_, devices, *request_.stages, tight);
  else
    try_numbers(best, devices, 1, std::min(all, coarse_->positions), tight);
  if (!request_.stages && !best && all > coarse_->positions && all <= options_.many_stages) {
    // So few did not fit: more of them may.
    const uint32_t tried = coarse_->positions;
    coarse_ = models_.get(request_, 2 * all);
    try_numbers(best, devices, next_number(tried), all, tight);
  }
  if (!request_.stages && !request_.every_site) try_sites(best, devices, tight);
  try_baselines(best, devices, all, tight);
}

// Never worse than what one does without a search; which, where latency matters more than balance, may be the
// better beginning.
void Search::try_baselines(Best& best, const Devices& devices, uint32_t all, bool tight) {
  std::set<uint32_t> numbers{request_.stages.value_or(all)};
  if (!request_.stages && best)
    for (const uint32_t stages = static_cast<uint32_t>(best->in_flight.size());
         const uint32_t number : {stages, next_number(stages)})
      if (number > 1 && number <= all) numbers.insert(number);
  for (const NamedStrategy& other : strategies())
    for (const uint32_t stages : numbers)
      if (other.is_baseline) try_stages(best, other, devices, stages, tight);
}

// The strongest sites, each by itself: its devices are near each other, and a search among all that stops
// when a stage more brings nothing may not come to it. Where it chose one site, it did.
void Search::try_sites(Best& best, const Devices& devices, bool tight) {
  std::map<uint32_t, Devices> of_site;
  for (const uint32_t device : devices) of_site[devices_[device].site].push_back(device);
  if (of_site.size() < 2 || (best && is_of_one_site(*best))) return;
  std::vector<std::pair<double, uint32_t>> sites;
  for (const auto& [site, members] : of_site) {
    double strength = 0;
    for (const uint32_t device : members) strength += devices_[device].rates.matmul_flops_per_second;
    if (members.size() > 1) sites.emplace_back(-strength, site);
  }
  std::sort(sites.begin(), sites.end());
  if (sites.size() > options_.sites_alone) sites.resize(options_.sites_alone);
  for (const auto& [strength, site] : sites) {
    const Devices& members = of_site[site];
    Best alone;
    // All of it, or half: what is better in between, small changes find.
    const auto most = static_cast<uint32_t>(std::min<size_t>(members.size(), coarse_->positions));
    try_stages(alone, strategy_, members, most, tight);
    try_stages(alone, strategy_, members, (most + 1) / 2, tight);
    if (alone) consider(best, *alone);
  }
}

uint32_t Search::next_number(uint32_t stages) const {
  const bool one_by_one = stages <= options_.numbers_one_by_one;
  return stages + (one_by_one ? 1 : std::max(1u, stages / options_.numbers_stride));
}

// As many stages as pay, from `least` up to `most`.
void Search::try_numbers(Best& best, const Devices& devices, uint32_t least, uint32_t most, bool tight) {
  uint32_t in_vain = 0;
  for (uint32_t stages = std::max(least, evaluator_.sites().sites());
       stages <= most && in_vain < options_.tries_in_vain;) {
    const Duration before = best ? best->step : Duration::max();
    try_stages(best, strategy_, devices, stages, tight);
    in_vain = best && best->step == before ? in_vain + 1 : 0;
    const uint32_t next = next_number(stages);
    stages = stages < most ? std::min(next, most) : most + 1;
  }
}

// Proposed with memory taken to be enough; where it is not, with less of it, too. Of a baseline the latter
// only where nothing else is left of it.
void Search::try_stages(Best& best, const NamedStrategy& strategy, const Devices& devices, uint32_t stages,
                        bool tight) {
  Scope scope{&request_, &model_, coarse_.get(), devices, stages, tight, pinned_};
  std::vector<CandidatePlan> candidates;
  bool is_short = evaluate_proposals(best, strategy, scope, candidates);
  const bool any = !candidates.empty();
  for (const CandidatePlan& candidate : candidates)
    is_short = is_short || evaluator_.is_short_of_memory(candidate);
  if (any) choose_among(best, std::move(candidates), scope);
  if (tight || !is_short || (any && strategy.is_baseline)) return;
  scope.tight = true;
  candidates.clear();
  evaluate_proposals(best, strategy, scope, candidates);
  if (!candidates.empty()) choose_among(best, std::move(candidates), scope);
}

void Search::choose_among(Best& best, std::vector<CandidatePlan> candidates, const Scope& scope) {
  std::stable_sort(candidates.begin(), candidates.end(), is_faster);
  for (const CandidatePlan& candidate : candidates) keep_start(candidate);
  if (strategy_.is_baseline) return consider(best, candidates[candidates.size() / 2]);
  if (candidates.size() > options_.refined) candidates.resize(options_.refined);
  // Whatever is in flight, these are no match.
  std::erase_if(candidates, [&](const CandidatePlan& candidate) {
    return evaluator_.shortest(candidate) >= hopeless(best);
  });
  CandidatePlan* chosen = nullptr;
  for (CandidatePlan& candidate : candidates) {
    evaluator_.raise_in_flight(candidate, chosen ? chosen->step : Duration::max());
    if (!chosen || candidate.step < chosen->step) chosen = &candidate;
  }
  if (!chosen) return;
  Proposal refined = refine(scope, chosen->proposal);
  const bool changed = refined.devices != chosen->proposal.devices || refined.ends != chosen->proposal.ends;
  if (auto candidate = changed ? evaluator_.evaluate(std::move(refined)) : std::nullopt) {
    evaluator_.raise_in_flight(*candidate, std::min(chosen->step, useless(best, candidate->proposal)));
    if (candidate->step < chosen->step) *chosen = std::move(*candidate);
  }
  keep_start(*chosen);
  consider(best, *chosen);
}

// From this length of a step on a plan is neither chosen nor a start for small changes, as things stand: also
// where equal bits make another fleet's best the chosen one.
Duration Search::hopeless(const Best& best) const {
  return best ? times(options_.nearly_as_good / options_.worth_equal_bits, best->step) : Duration::max();
}

// Likewise of this plan: a large one is no start.
Duration Search::useless(const Best& best, const Proposal& proposal) const {
  const bool may_start = evaluator_.work(proposal) <= options_.small;
  return may_start || !best ? hopeless(best) : best->step;
}

// What passes a stage by may take a faster link than the stage's own: a tied weight, across a row.
double Search::least_estimate(const Proposal& proposal) const {
  PartitionProblem problem = problem_of(request_, model_, proposal);
  problem.passing = false;
  return std::min(proposal.score, estimate(problem.cost_of(proposal.ends), request_.microbatches));
}

// The most promising ones that fit, into `candidates`. Whether any was too large.
bool Search::evaluate_proposals(const Best& best, const NamedStrategy& strategy, const Scope& scope,
                                std::vector<CandidatePlan>& candidates) {
  bool tried[2] = {};  // a row, a ring: the best of each is evaluated
  size_t work = 0, count = 0;
  bool too_large = false;
  // A baseline that the default looks at only to be no worse.
  const bool beside = strategy.is_baseline && !strategy_.is_baseline;
  std::vector<Proposal> proposals = evaluator_.sites().within(
      scope, evaluator_.owners().within(
                 scope, within_ranges(scope, strategy.propose(scope), !strategy.is_baseline)));
  for (Proposal& proposal : proposals) {
    if (beside && best && least_estimate(proposal) > options_.hopeful * seconds(best->step)) continue;
    const bool is_ring = proposal.is_ring(model_);
    const bool enough = count >= options_.evaluated && work >= options_.evaluated_work;
    if (!strategy.is_baseline && enough && tried[is_ring]) continue;
    tried[is_ring] = true;
    work += evaluator_.work(proposal);
    const bool is_small = evaluator_.work(proposal) <= options_.small;
    // What is slower than those that will be refined, and no start, need not be known exactly.
    const Duration slow = strategy_.is_baseline ? Duration::max()
                                                : std::max(nth_step(candidates, options_.refined),
                                                           std::min(slowest_start(proposal), hopeless(best)));
    auto candidate = evaluator_.evaluate(std::move(proposal), slow);
    too_large = too_large || !candidate;
    if (!candidate) continue;
    ++count;
    if (is_small && !strategy_.is_baseline) evaluator_.fill_if_faster(*candidate, slow);
    candidates.push_back(std::move(*candidate));
  }
  return too_large;
}

void Search::consider(Best& best, CandidatePlan& chosen) const {
  const bool more_stages = best && chosen.in_flight.size() > best->in_flight.size();
  const double worth = more_stages ? options_.worth_a_stage : 1;
  if (!best || seconds(chosen.step) < worth * seconds(best->step)) best = std::move(chosen);
}

void Search::keep_start(const CandidatePlan& candidate) {
  if (evaluator_.work(candidate.proposal) > options_.small) return;
  auto& best = starts_[{candidate.in_flight.size(), candidate.proposal.is_ring(model_)}];
  const auto at = std::upper_bound(best.begin(), best.end(), candidate, is_faster);
  if (at == best.begin() + static_cast<ptrdiff_t>(options_.starts_each)) return;
  best.insert(at, candidate);
  if (best.size() > options_.starts_each) best.pop_back();
}

// Of those like it, as far as there is no room for another.
Duration Search::slowest_start(const Proposal& proposal) const {
  if (evaluator_.work(proposal) > options_.small) return Duration::min();
  const auto known = starts_.find({proposal.ends.size(), proposal.is_ring(model_)});
  if (known == starts_.end() || known->second.size() < options_.starts_each) return Duration::max();
  return known->second.back().step;
}

void Search::polish_best(CandidatePlan& best) {
  const bool is_small = evaluator_.work(best.proposal) <= options_.small;
  size_t work = is_small ? options_.polish_work_of_small : options_.polish_work;
  const bool number_may_change = !request_.stages;
  const std::vector<CandidatePlan*> starts = starts_beside(best);
  polish(evaluator_, best, {number_may_change, idle_devices(best)}, work);
  Best polished = std::move(best);
  for (CandidatePlan* start : starts) {
    polish(evaluator_, *start, {number_may_change, idle_devices(*start)}, work);
    consider(polished, *start);
  }
  best = std::move(*polished);
  if (is_small) explore(evaluator_, best, {number_may_change, idle_devices(best)}, work);
}

// Of its fleet, the fastest first.
std::vector<CandidatePlan*> Search::starts_beside(const CandidatePlan& chosen) {
  const bool alike = request_.equal_bits != EqualBits::Ignore && is_of_one_kind(chosen);
  const auto kind = [&](const CandidatePlan& of) {
    return devices_[of.proposal.devices.front()].fingerprint;
  };
  std::vector<CandidatePlan*> starts;
  for (auto& [key, best] : starts_)
    for (CandidatePlan& start : best)
      if (is_faster(chosen, start) && seconds(start.step) < options_.nearly_as_good * seconds(chosen.step) &&
          (!alike || (is_of_one_kind(start) && kind(start) == kind(chosen))))
        starts.push_back(&start);
  std::stable_sort(starts.begin(), starts.end(),
                   [](const CandidatePlan* a, const CandidatePlan* b) { return is_faster(*a, *b); });
  if (starts.size() > options_.polished) starts.resize(options_.polished);
  return starts;
}

Search::Devices Search::idle_devices(const CandidatePlan& chosen) const {
  const auto& used = chosen.proposal.devices;
  const bool alike = request_.equal_bits != EqualBits::Ignore && is_of_one_kind(chosen);
  Devices idle;
  for (uint32_t device = 0; device < devices_.size(); ++device)
    if (std::find(used.begin(), used.end(), device) == used.end() &&
        (!alike || devices_[device].fingerprint == devices_[used.front()].fingerprint))
      idle.push_back(device);
  return idle;
}

}  // namespace weft::plan
