#include "plan/plan.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "plan/constraints.h"
#include "plan/explain.h"
#include "plan/model.h"
#include "plan/noise.h"
#include "plan/placement.h"
#include "plan/polish.h"
#include "plan/refine.h"
#include "plan/strategy.h"
#include "plan/worked.h"

namespace weft::plan {
namespace {

constexpr uint32_t kCoarsePositions = 32;
constexpr uint32_t kManyStages = 128;    // that are searched, where so few as that do not fit
constexpr size_t kWorkedOut = 4;         // proposals for a number of stages that are played through,
constexpr size_t kWorkedOutWork = 8000;  // and more as long as that is little (Workshop::work)
constexpr double kHopeful = 1.5;         // a baseline's own estimate is at most so far off
constexpr size_t kRefined = 2;           // proposals whose microbatches in flight are tuned
constexpr uint32_t kTriesInVain = 4;     // numbers of stages without a better plan
constexpr size_t kSitesAlone = 2;        // that are looked at by themselves
constexpr double kWorthAStage = 0.98;    // more stages have to be faster by that
constexpr size_t kPolished = 8;          // plans that are changed a little,
constexpr size_t kStartsEach = 2;        // so many of each number of stages,
constexpr double kNearlyAsGood = 1.5;    // that take at most so much longer than the best
constexpr size_t kPolishWork = 60'000;   // what is looked at for that (Workshop::work),
constexpr size_t kSmall = 1'500;         // and of a plan that takes no more than that to work out
constexpr size_t kPolishWorkOfSmall = 300'000;
constexpr size_t kNamesShown = 8;
constexpr double kWorthEqualBits = 0.9;  // of the speed is enough, if bits are then equal

bool is_faster(const Worked& a, const Worked& b) { return a.prediction.step < b.prediction.step; }

class Planner {
 public:
  explicit Planner(const PlanRequest& request)
      : request_(request),
        devices_(request.cluster.devices()),
        model_(make_model(*request.graph, request.classes)),
        coarse_(coarse_model(std::max(kCoarsePositions, 3 * request.stages.value_or(8)))),
        pinned_(pinned_ranges(request.pins, model_)),
        workshop_(request, model_) {
    set_ring(model_);
  }

  Result<Plan> run() {
    strategy_ = find_strategy(request_.strategy);
    if (!strategy_) {
      std::string names;
      for (const NamedStrategy& strategy : strategies())
        names += (names.empty() ? "" : ", ") + std::string(strategy.name);
      return fail(ErrorCode::InvalidArgument,
                  "there is no planning strategy '" + request_.strategy + "'; there are: " + names);
    }
    const uint32_t asked = request_.stages.value_or(1);
    if (devices_.size() < asked)
      return fail(ErrorCode::Infeasible, "stages: " + std::to_string(asked) + " needs " +
                                             std::to_string(asked) + (asked == 1 ? " peer, " : " peers, ") +
                                             std::to_string(devices_.size()) +
                                             (devices_.size() == 1 ? " is there" : " are there"));
    if (request_.equal_bits == EqualBits::Require && largest_kind() < asked)
      return fail(ErrorCode::Infeasible, "equal_bits: require needs " + std::to_string(asked) +
                                             " peers of one fingerprint; there are " + describe_kinds() +
                                             ". With prefer they work together");
    if (model_.positions < asked)
      return fail(ErrorCode::Infeasible, "the model cannot be cut into " + std::to_string(asked) +
                                             " stages: it has " + std::to_string(model_.positions) +
                                             " pieces that stay whole; ask for fewer stages");
    for (const bool tight : {false, true})
      if (try_fleet(tight)) {
        if (!strategy_->is_baseline) polish_best();
        if (asked > 1 && !strategy_->is_baseline) look_for_fewer(asked);
        return finish();
      }
    return fail(infeasible());
  }

 private:
  void set_ring(Model& model) const {
    if (auto ring = find_ring(model, pinned_ranges(request_.pins, model))) model.ring = std::move(ring);
  }
  Model coarse_model(uint32_t positions) const {
    Model model = make_model(*request_.graph, request_.classes, positions);
    set_ring(model);
    return model;
  }

  std::map<std::string, std::vector<uint32_t>> kinds() const {
    std::map<std::string, std::vector<uint32_t>> of;
    for (uint32_t i = 0; i < devices_.size(); ++i) of[devices_[i].fingerprint].push_back(i);
    return of;
  }
  size_t largest_kind() const {
    size_t most = 0;
    for (const auto& [fingerprint, devices] : kinds()) most = std::max(most, devices.size());
    return most;
  }
  std::string describe_kinds() const {
    std::string text;
    for (const auto& [fingerprint, devices] : kinds()) {
      text += (text.empty() ? "" : ", ") + std::to_string(devices.size()) + " of '" + fingerprint + "' (";
      for (size_t i = 0; i < std::min<size_t>(devices.size(), kNamesShown); ++i)
        text += (i ? ", " : "") + devices_[devices[i]].name;
      text += devices.size() > kNamesShown ? ", ...)" : ")";
    }
    return text;
  }

  // What equal bits cost, or what they would have: nothing where there is no choice.
  std::string describe_bits(const Plan& plan) const {
    std::set<std::string> used;
    for (const StagePlan& stage : plan.stages) used.insert(devices_[stage.devices.front()].fingerprint);
    if (used.size() > 1)
      return !alike_step_ ? std::string()
                          : "bits are not promised: devices of " + std::to_string(used.size()) +
                                " kinds work together; of one kind a step would take " + show(*alike_step_) +
                                " (equal_bits: require)";
    if (request_.equal_bits == EqualBits::Ignore) return {};
    std::string names;
    size_t others = 0;
    for (const DeviceView& device : devices_)
      if (!used.contains(device.fingerprint) && ++others <= kNamesShown)
        names += (names.empty() ? "" : ", ") + device.name;
    if (others == 0) return {};
    if (others > kNamesShown) names += " and " + std::to_string(others - kNamesShown) + " more";
    return "left out, for their bits differ from " + *used.begin() + ": " + names +
           (mixed_step_ ? "; with them a step would take " + show(*mixed_step_) : "") +
           "; equal_bits: ignore uses them too";
  }

  // Whether the number of stages that was asked for costs speed, on the devices that would be used.
  void look_for_fewer(uint32_t asked) {
    std::optional<Worked> chosen = std::exchange(best_, std::nullopt);
    std::vector<uint32_t> devices(devices_.size());
    std::iota(devices.begin(), devices.end(), 0u);
    if (is_of_one_kind(*chosen))
      std::erase_if(devices, [&](uint32_t device) {
        return devices_[device].fingerprint != devices_[chosen->proposal.devices.front()].fingerprint;
      });
    try_numbers(devices, 1, asked - 1, /*tight=*/false);
    std::swap(best_, chosen);
    if (chosen && seconds(chosen->prediction.step) < kWorthAStage * seconds(best_->prediction.step))
      fewer_ = Plan::Fewer{chosen->proposal.devices, chosen->prediction.step};
  }
  bool is_of_one_kind(const Worked& worked) const {
    const auto& devices = worked.proposal.devices;
    return std::all_of(devices.begin(), devices.end(), [&](uint32_t device) {
      return devices_[device].fingerprint == devices_[devices.front()].fingerprint;
    });
  }

  bool is_of_one_site(const Worked& worked) const {
    const auto& devices = worked.proposal.devices;
    return std::all_of(devices.begin(), devices.end(), [&](uint32_t device) {
      return devices_[device].site == devices_[devices.front()].site;
    });
  }

  // Devices of one fingerprint, or all, as the job wants it: the best in `best_`.
  bool try_fleet(bool tight) {
    const std::map<std::string, std::vector<uint32_t>> of = kinds();
    std::vector<uint32_t> all(devices_.size());
    std::iota(all.begin(), all.end(), 0u);
    if (of.size() == 1 || request_.equal_bits == EqualBits::Ignore) {
      try_devices(all, tight);
      return best_.has_value();
    }
    for (const auto& [fingerprint, devices] : of)
      if (devices.size() >= request_.stages.value_or(1)) try_devices(devices, tight);
    if (request_.equal_bits == EqualBits::Require) return best_.has_value();
    std::optional<Worked> alike = std::exchange(best_, std::nullopt);
    try_devices(all, tight);
    if (alike && best_ &&
        kWorthEqualBits * seconds(alike->prediction.step) <= seconds(best_->prediction.step))
      mixed_step_ = std::exchange(best_, std::move(alike))->prediction.step;
    else if (alike && best_)
      alike_step_ = alike->prediction.step;
    else if (alike)
      best_ = std::move(alike);
    return best_.has_value();
  }

  void try_devices(const std::vector<uint32_t>& devices, bool tight) {
    const auto all = static_cast<uint32_t>(std::min<size_t>(devices.size(), model_.positions));
    if (strategy_->is_baseline) return try_stages(*strategy_, devices, request_.stages.value_or(all), tight);
    if (request_.stages)
      try_stages(*strategy_, devices, *request_.stages, tight);
    else
      try_numbers(devices, 1, std::min(all, coarse_.positions), tight);
    if (!request_.stages && !best_ && all > coarse_.positions && all <= kManyStages) {
      // So few did not fit: more of them may.
      const uint32_t tried = coarse_.positions;
      coarse_ = coarse_model(2 * all);
      try_numbers(devices, next_number(tried), all, tight);
    }
    if (!request_.stages && !request_.every_site) try_sites(devices, tight);
    // Never worse than what one does without a search; which, where latency matters more than balance, may be
    // the better beginning.
    std::set<uint32_t> numbers{request_.stages.value_or(all)};
    if (!request_.stages && best_)
      for (const uint32_t stages = static_cast<uint32_t>(best_->in_flight.size());
           const uint32_t number : {stages, next_number(stages)})
        if (number > 1 && number <= all) numbers.insert(number);
    for (const NamedStrategy& other : strategies())
      for (const uint32_t stages : numbers)
        if (other.is_baseline) try_stages(other, devices, stages, tight);
  }

  // The strongest sites, each by itself: its devices are near each other, and a search among all that stops
  // when a stage more brings nothing may not come to it. Where it chose one site, it did.
  void try_sites(const std::vector<uint32_t>& devices, bool tight) {
    std::map<uint32_t, std::vector<uint32_t>> of_site;
    for (const uint32_t device : devices) of_site[devices_[device].site].push_back(device);
    if (of_site.size() < 2 || (best_ && is_of_one_site(*best_))) return;
    std::vector<std::pair<double, uint32_t>> sites;
    for (const auto& [site, members] : of_site) {
      double strength = 0;
      for (const uint32_t device : members) strength += devices_[device].rates.matmul_flops_per_second;
      if (members.size() > 1) sites.emplace_back(-strength, site);
    }
    std::sort(sites.begin(), sites.end());
    if (sites.size() > kSitesAlone) sites.resize(kSitesAlone);
    for (const auto& [strength, site] : sites) {
      const std::vector<uint32_t>& members = of_site[site];
      std::optional<Worked> before = std::exchange(best_, std::nullopt);
      // All of it, or half: what is better in between, small changes find.
      const auto most = static_cast<uint32_t>(std::min<size_t>(members.size(), coarse_.positions));
      try_stages(*strategy_, members, most, tight);
      try_stages(*strategy_, members, (most + 1) / 2, tight);
      if (before) {
        std::swap(best_, before);
        if (before) consider(*before);
      }
    }
  }

  // Up to eight each number, then in growing strides: neighbours differ little.
  static uint32_t next_number(uint32_t stages) { return stages + (stages > 8 ? stages / 4 : 1); }
  // As many stages as pay, from `least` up to `most`.
  void try_numbers(const std::vector<uint32_t>& devices, uint32_t least, uint32_t most, bool tight) {
    uint32_t in_vain = 0;
    for (uint32_t stages = std::max(least, workshop_.sites().sites());
         stages <= most && in_vain < kTriesInVain;) {
      const Duration before = best_ ? best_->prediction.step : Duration::max();
      try_stages(*strategy_, devices, stages, tight);
      in_vain = best_ && best_->prediction.step == before ? in_vain + 1 : 0;
      const uint32_t next = next_number(stages);
      stages = stages < most ? std::min(next, most) : most + 1;
    }
  }

  // Proposed with memory taken to be enough; where it is not, with less of it, too. Of a baseline the latter
  // only where nothing else is left of it.
  void try_stages(const NamedStrategy& strategy, const std::vector<uint32_t>& devices, uint32_t stages,
                  bool tight) {
    Scope scope{&request_, &model_, &coarse_, devices, stages, tight, pinned_};
    std::vector<Worked> candidates;
    bool is_short = work_out_proposals(strategy, scope, candidates);
    const bool any = !candidates.empty();
    for (const Worked& candidate : candidates) is_short = is_short || workshop_.is_short_of_memory(candidate);
    if (any) choose_among(std::move(candidates), scope);
    if (tight || !is_short || (any && strategy.is_baseline)) return;
    scope.tight = true;
    candidates.clear();
    work_out_proposals(strategy, scope, candidates);
    if (!candidates.empty()) choose_among(std::move(candidates), scope);
  }

  void choose_among(std::vector<Worked> candidates, const Scope& scope) {
    std::stable_sort(candidates.begin(), candidates.end(), is_faster);
    for (const Worked& candidate : candidates) keep_start(candidate);
    if (strategy_->is_baseline) {
      consider(candidates[candidates.size() / 2]);
      return;
    }
    if (candidates.size() > kRefined) candidates.resize(kRefined);
    Worked* chosen = nullptr;
    for (Worked& candidate : candidates) {
      workshop_.raise_in_flight(candidate);
      if (!chosen || candidate.prediction.step < chosen->prediction.step) chosen = &candidate;
    }
    Proposal refined = refine(scope, chosen->proposal);
    const bool changed = refined.devices != chosen->proposal.devices || refined.ends != chosen->proposal.ends;
    if (auto worked = changed ? workshop_.work_out(std::move(refined)) : std::nullopt) {
      workshop_.raise_in_flight(*worked);
      if (worked->prediction.step < chosen->prediction.step) *chosen = std::move(*worked);
    }
    keep_start(*chosen);
    consider(*chosen);
  }

  // What passes a stage by may take a faster link than the stage's own: a tied weight, across a row.
  double least_estimate(const Proposal& proposal) const {
    PartitionProblem problem = problem_of(request_, model_, proposal);
    problem.passing = false;
    return std::min(proposal.score, estimate(problem.cost_of(proposal.ends), request_.microbatches));
  }

  // The most promising ones that fit, into `candidates`. Whether any was too large.
  bool work_out_proposals(const NamedStrategy& strategy, const Scope& scope,
                          std::vector<Worked>& candidates) {
    bool tried[2] = {};  // a row, a ring: the best of each is worked out
    size_t work = 0, count = 0;
    bool too_large = false;
    std::vector<Proposal> proposals = workshop_.sites().within(
        scope, workshop_.owners().within(
                   scope, within_ranges(scope, strategy.propose(scope), !strategy.is_baseline)));
    for (Proposal& proposal : proposals) {
      // A baseline that the default looks at only to be no worse.
      const bool beside = strategy.is_baseline && !strategy_->is_baseline;
      if (beside && best_ && least_estimate(proposal) > kHopeful * seconds(best_->prediction.step)) continue;
      const bool is_ring = proposal.is_ring(model_);
      const bool enough = count >= kWorkedOut && work >= kWorkedOutWork;
      if (!strategy.is_baseline && enough && tried[is_ring]) continue;
      tried[is_ring] = true;
      work += workshop_.work(proposal);
      const bool is_small = workshop_.work(proposal) <= kSmall;
      auto worked = workshop_.work_out(std::move(proposal));
      too_large = too_large || !worked;
      if (!worked) continue;
      ++count;
      if (is_small && !strategy_->is_baseline) workshop_.fill_if_faster(*worked);
      candidates.push_back(std::move(*worked));
    }
    return too_large;
  }

  void consider(Worked& chosen) {
    const bool more_stages = best_ && chosen.in_flight.size() > best_->in_flight.size();
    const double worth = more_stages ? kWorthAStage : 1;
    if (!best_ || seconds(chosen.prediction.step) < worth * seconds(best_->prediction.step))
      best_ = std::move(chosen);
  }

  // Where small changes may begin: what is best may be reached from what is not yet.
  void keep_start(const Worked& worked) {
    if (workshop_.work(worked.proposal) > kSmall) return;
    auto& best = starts_[{worked.in_flight.size(), worked.proposal.is_ring(model_)}];
    const auto at = std::upper_bound(best.begin(), best.end(), worked, is_faster);
    if (at == best.begin() + kStartsEach) return;
    best.insert(at, worked);
    if (best.size() > kStartsEach) best.pop_back();
  }
  void polish_best() {
    const bool is_small = workshop_.work(best_->proposal) <= kSmall;
    size_t work = is_small ? kPolishWorkOfSmall : kPolishWork;
    const std::vector<Worked*> starts = starts_beside(*best_);
    polish(*best_, work);
    for (Worked* start : starts) {
      polish(*start, work);
      consider(*start);
    }
    if (is_small) explore(workshop_, *best_, {!request_.stages, idle_devices(*best_)}, work);
  }
  // Of its fleet, the fastest first.
  std::vector<Worked*> starts_beside(const Worked& chosen) {
    const bool alike = request_.equal_bits != EqualBits::Ignore && is_of_one_kind(chosen);
    const auto kind = [&](const Worked& of) { return devices_[of.proposal.devices.front()].fingerprint; };
    std::vector<Worked*> starts;
    for (auto& [key, best] : starts_)
      for (Worked& start : best)
        if (is_faster(chosen, start) &&
            seconds(start.prediction.step) < kNearlyAsGood * seconds(chosen.prediction.step) &&
            (!alike || (is_of_one_kind(start) && kind(start) == kind(chosen))))
          starts.push_back(&start);
    std::stable_sort(starts.begin(), starts.end(),
                     [](const Worked* a, const Worked* b) { return is_faster(*a, *b); });
    if (starts.size() > kPolished) starts.resize(kPolished);
    return starts;
  }
  void polish(Worked& worked, size_t& work) {
    plan::polish(workshop_, worked, {!request_.stages, idle_devices(worked)}, work);
  }

  std::vector<uint32_t> idle_devices(const Worked& chosen) const {
    const auto& used = chosen.proposal.devices;
    const bool alike = request_.equal_bits != EqualBits::Ignore && is_of_one_kind(chosen);
    std::vector<uint32_t> idle;
    for (uint32_t device = 0; device < devices_.size(); ++device)
      if (std::find(used.begin(), used.end(), device) == used.end() &&
          (!alike || devices_[device].fingerprint == devices_[used.front()].fingerprint))
        idle.push_back(device);
    return idle;
  }

  Error infeasible() const {
    if (const std::string why = why_not_kept(request_, model_); !why.empty())
      return {ErrorCode::Infeasible, "the pins cannot be kept: " + why};
    for (const std::string& why : {workshop_.owners().why_not_kept(), workshop_.sites().why_not_kept()})
      if (!why.empty()) return {ErrorCode::Infeasible, why};
    Bytes all;
    for (const DeviceView& device : devices_) all += device.memory;
    const auto& held = model_.held_before;
    const Bytes state{held.parameters.back() * (1 + int64_t{request_.optimizer_slots}) + held.other.back()};
    const Bytes persistent{2 * state.value - held.fixed.back() +
                           held.parameters.back() * request_.gradient_sums};
    std::string names;
    for (size_t i = 0; i < std::min<size_t>(devices_.size(), kNamesShown); ++i)
      names += (i ? ", " : "") + devices_[i].name;
    if (devices_.size() > kNamesShown) names += ", ...";
    std::string text =
        "the model does not fit: parameters, gradients, optimizer state and a copy for recovery take " +
        show(persistent) + ", activations of one microbatch about " + show(Bytes{held.saved.back()}) +
        "; the " + std::to_string(devices_.size()) + (devices_.size() == 1 ? " peer has " : " peers have ") +
        show(all) + " in all (" + names + ")";
    if (const auto& shortage = workshop_.shortage())
      text += "; the closest cut needs " + show(shortage->needed) + " on " + shortage->device +
              ", which has " + show(shortage->there);
    if (const std::string limit = workshop_.owners().describe_limit(); !limit.empty())
      text += "; with " + limit;
    if (request_.every_site) text += "; with an op with parameters at every site";
    if (!request_.pins.empty()) text += "; with " + describe_pins(request_.pins, request_.cluster);
    if (request_.equal_bits == EqualBits::Require && kinds().size() > 1)
      text += "; equal_bits: require takes only one of " + describe_kinds();
    return {ErrorCode::Infeasible, text + ". Add peers, allow more stages, or take smaller microbatches"};
  }

  Result<Plan> finish() {
    Worked& worked = *best_;
    worked.prediction = workshop_.predict_with(worked, worked.in_flight, /*records_path=*/true);
    Plan plan;
    plan.stage_of_op = worked.stage_of_op;
    const auto count = static_cast<uint32_t>(worked.in_flight.size());
    for (uint32_t stage = 0; stage < count; ++stage) {
      const StageWork& work = worked.pipeline.stages[stage];
      StagePlan planned;
      planned.devices = {worked.proposal.devices[stage]};
      planned.microbatches_in_flight = worked.in_flight[stage];
      planned.memory =
          work.persistent + work.microbatch * (worked.in_flight[stage] + (request_.evaluates ? 1 : 0));
      planned.persistent = work.persistent;
      planned.microbatch = work.microbatch;
      planned.host_memory = work.host;
      planned.pinned = std::any_of(request_.pins.begin(), request_.pins.end(),
                                   [&](const Pin& pin) { return pin.device == planned.devices.front(); });
      for (const Segment& segment : work.segments) {
        (segment.backward ? planned.backward : planned.forward) += segment.compute;
        planned.repeated += segment.repeated;
      }
      planned.recomputes = worked.recomputes[stage];
      plan.stages.push_back(std::move(planned));
    }
    std::map<std::pair<uint32_t, uint32_t>, std::pair<Bytes, Bytes>> bytes;
    for (const Message& message : worked.pipeline.messages) {
      auto& [wire, dense] = bytes[{message.from_stage, message.to_stage}];
      wire += message.bytes;
      dense += message.dense;
    }
    for (const auto& [stages, sizes] : bytes)
      plan.links.push_back({stages.first, stages.second, sizes.first, sizes.second});
    plan.codecs = worked.codecs;
    plan.predicted_step = worked.prediction.step;
    plan.predicted_alone = alone();
    plan.fewer = fewer_;
    plan.timeline = worked.prediction.timeline;
    plan.critical = worked.prediction.critical;
    plan.predicted_step_kept = worked.kept_step;
    plan.explanation =
        explain({&request_, &model_, &plan, &worked.pipeline, &worked.prediction, &worked.proposal});
    for (const std::string& line :
         {describe_codecs(worked.codecs, worked.pipeline, request_.evaluates), describe_schedule(worked),
          describe_elsewhere(worked), describe_bits(plan)})
      if (!line.empty()) plan.explanation.push_back(line);
    if (const std::string shares = workshop_.owners().describe(plan.stage_of_op, worked.proposal.devices);
        !shares.empty())
      plan.explanation.push_back(shares);
    if (!request_.pins.empty())
      plan.explanation.push_back("as pinned: " + describe_pins(request_.pins, request_.cluster));
    return plan;
  }

  // Empty: 1F1B, or a few more in flight.
  std::string describe_schedule(const Worked& worked) const {
    const bool all = std::all_of(worked.in_flight.begin(), worked.in_flight.end(),
                                 [&](uint32_t most) { return most == request_.microbatches; });
    if (!all || worked.in_flight.size() < 2 || request_.microbatches <= worked.in_flight.size() + 1)
      return {};
    return "all " + std::to_string(request_.microbatches) +
           " microbatches of a step are in flight at once, as GPipe has them: fewer hide less of the latency";
  }
  // Which ops lie with another stage than their neighbours.
  std::string describe_elsewhere(const Worked& worked) const {
    std::string text;
    for (const auto& [position, stage] : worked.proposal.elsewhere)
      text += (text.empty() ? "out of the row: " : ", ") + name_of_position(position) + " on stage " +
              std::to_string(stage + 1);
    return text;
  }
  std::string name_of_position(uint32_t position) const {
    const auto ops = request_.graph->ops();
    for (uint32_t i = 0; i < ops.size(); ++i)
      if (model_.position_of_op[i] == position && ops[i].phase == dag::Phase::Forward &&
          !ops[i].inputs.empty())
        return ops[i].name.empty() ? std::string(to_string(ops[i].kind)) : "'" + ops[i].name + "'";
    return "an op";
  }

  Duration alone() const {
    double best = std::numeric_limits<double>::infinity();
    for (const DeviceView& device : devices_) {
      const auto each =
          seconds_of_positions(model_, device.device_class, device.rates, request_.microbatches > 1);
      double step = 0;
      for (const double position : each) step += position * request_.microbatches;
      const auto& held = model_.held_before;
      step += update_seconds({held.parameters.back()}, request_.optimizer_slots, device.rates) +
              static_cast<double>(held.parameter_count.back()) * device.rates.kernel_seconds;
      best = std::min(best, step);
    }
    return Duration(static_cast<int64_t>(std::min(best, 1e9) * 1e9));
  }

  const PlanRequest& request_;
  const std::vector<DeviceView>& devices_;
  Model model_, coarse_;
  std::vector<PinnedRange> pinned_;
  Workshop workshop_;
  const NamedStrategy* strategy_ = nullptr;
  std::optional<Worked> best_;
  // The best by number of stages, rows and rings.
  std::map<std::pair<size_t, bool>, std::vector<Worked>> starts_;
  std::optional<Plan::Fewer> fewer_;
  // With equal_bits: prefer and several kinds: what was decided against.
  std::optional<Duration> mixed_step_, alike_step_;
};

Status check_request(const PlanRequest& request) {
  const auto bad = [](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, "a plan needs " + what);
  };
  if (!request.graph || request.graph->ops().empty()) return bad("a graph with ops");
  if (request.microbatches == 0) return bad("at least one microbatch a step");
  if (request.stages == 0u) return bad("at least one stage");
  if (request.optimizer_slots > 8) return bad("at most eight optimizer slots");
  if (!(request.owner_share_max > 0) || request.owner_share_max > 1)
    return bad("a share of the parameters above 0 and up to 1");
  for (const Pin& pin : request.pins)
    if (pin.of.empty() || pin.of.back().index >= request.graph->ops().size() ||
        pin.device >= request.cluster.devices().size())
      return bad("pins of ops and devices that it has");
  if (request.gradient_sums < 1 || request.gradient_sums > 2)
    return bad("a gradient is summed up in one or two tensors");
  const size_t classes = std::max<size_t>(1, request.classes.size());
  for (const auto& lowered : request.classes)
    if (!lowered || lowered->op_of.size() != request.graph->ops().size())
      return bad("the graph of each class made from its own");
  for (const DeviceView& device : request.cluster.devices())
    if (device.device_class >= classes) return bad("the class of device '" + device.name + "'");
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  const auto& devices = request.cluster.devices();
  for (size_t i = 0; i < devices.size(); ++i) {
    const Rates& rates = devices[i].rates;
    if (!positive(rates.matmul_flops_per_second) || !positive(rates.convolution_flops_per_second) ||
        !positive(rates.memory_bytes_per_second) || !std::isfinite(rates.kernel_seconds) ||
        rates.kernel_seconds < 0)
      return bad("positive rates of device '" + devices[i].name + "'");
    if (!(devices[i].uplink > 0) || !(devices[i].downlink > 0))
      return bad("positive bandwidth of device '" + devices[i].name + "'");
  }
  if (!request.cluster.all_links([&](const LinkView& link) {
        return positive(link.bytes_per_second) && link.latency >= Duration{};
      }))
    return bad("a positive bandwidth of every link");
  return {};
}

// Links that are hidden only just keep microbatches under way for longer, which costs where memory bounds how
// many: so the gentlest codecs, none, and six bits everywhere are planned, and of those that are nearly as
// fast as the fastest the one that adds least noise taken. Never slower than without.
Result<Plan> plan_compressed(PlanRequest request) {
  constexpr double kNearlyAsFast = 1.05;
  const Compression hiding = request.compression;
  const compress::Codec six{.kind = compress::Kind::Blocks, .bits = 6};
  std::optional<Result<Plan>> failed;
  std::vector<Plan> plans;
  for (const Compression& compression :
       {Compression{}, hiding, Compression{.policy = CompressionPolicy::Uniform, .codec = six}}) {
    request.compression = compression;
    auto plan = Planner(request).run();
    const bool passes = plan && (plans.empty() || compression.policy != CompressionPolicy::Uniform ||
                                 is_within(noise_of(plan->codecs), noise_bound(hiding)));
    if (passes)
      plans.push_back(std::move(*plan));
    else if (!plan && !failed)
      failed = std::move(plan);
  }
  if (plans.empty()) return std::move(*failed);
  const auto step = [](const Plan& plan) { return seconds(plan.predicted_step); };
  std::stable_sort(plans.begin(), plans.end(), [](const Plan& a, const Plan& b) {
    return noise_of(a.codecs).forward < noise_of(b.codecs).forward;
  });
  double fastest = step(plans.front());
  for (const Plan& plan : plans) fastest = std::min(fastest, step(plan));
  return std::move(*std::find_if(plans.begin(), plans.end(),
                                 [&](const Plan& plan) { return step(plan) <= kNearlyAsFast * fastest; }));
}

}  // namespace

Result<Plan> make_plan(const PlanRequest& request) {
  WEFT_TRY_STATUS(check_request(request));
  if (request.compression.policy == CompressionPolicy::Auto) return plan_compressed(request);
  return Planner(request).run();
}

}  // namespace weft::plan
