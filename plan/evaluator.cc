#include "plan/evaluator.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "dag/split.h"
#include "plan/constraints.h"
#include "plan/copies.h"
#include "plan/partition.h"

namespace weft::plan {
namespace {

// The shortest that takes at least so many times as long.
Duration scaled(double times, Duration step) {
  const double scaled = times * static_cast<double>(step.count());
  return scaled < 9e18 ? Duration(static_cast<int64_t>(std::ceil(scaled)) + 1) : Duration::max();
}

}  // namespace

Evaluator::Evaluator(const PlanRequest& request, const Model& model, const SearchOptions& options)
    : request_(request),
      model_(model),
      options_(options),
      devices_(request.cluster.devices()),
      owners_(request),
      sites_(request),
      movable_(dag::movable_sums(*request.graph, request.classes)),
      users_(request.graph->users()) {}

std::optional<CandidatePlan> Evaluator::evaluate(Proposal proposal, Duration enough) {
  if (!proposal.has_all_stages(model_)) return std::nullopt;
  CandidatePlan keeps = deal_out(std::move(proposal));
  if (!keeps_pins(request_.pins, keeps.stage_of_op, keeps.proposal.devices) ||
      !owners_.are_kept(keeps.stage_of_op, keeps.proposal.devices) ||
      !sites_.is_kept(keeps.stage_of_op, keeps.proposal.devices) || !measure(keeps))
    return std::nullopt;
  const std::vector<bool> starved = starved_stages(keeps);
  const bool repeats_any = std::find(starved.begin(), starved.end(), true) != starved.end();
  // Filling is worth it only if that is faster than a part of this: what is no faster than `enough` then is
  // not where this is that much slower.
  const bool fits =
      predict_if_it_fits(keeps, repeats_any ? Duration::max() : scaled(1 / options_.worth_memory, enough));
  if (!repeats_any) return fits ? std::optional(std::move(keeps)) : std::nullopt;
  CandidatePlan repeats = keeps;
  repeats.recomputes = starved;
  measure(repeats);
  // Values that are made again are there all at once, too: where that leaves no more in flight, they are
  // kept.
  for (size_t stage = 0; stage < starved.size(); ++stage)
    if (repeats.in_flight_max[stage] <= keeps.in_flight_max[stage]) repeats.recomputes[stage] = false;
  if (repeats.recomputes != starved) measure(repeats);
  if (!predict_if_it_fits(repeats)) return fits ? std::optional(std::move(keeps)) : std::nullopt;
  keep_where_that_is_faster(repeats, keeps.in_flight_max);
  if (!fits) return repeats;
  if (seconds(repeats.step) >= options_.worth_memory * seconds(keeps.step)) return keeps;
  repeats.kept_step = keeps.step;
  return repeats;
}

// Stage by stage, those first that lack least: fewer microbatches in flight may cost less than their
// values.
void Evaluator::keep_where_that_is_faster(CandidatePlan& repeats,
                                          const std::vector<uint32_t>& in_flight_kept) {
  const auto count = static_cast<uint32_t>(in_flight_kept.size());
  std::vector<uint32_t> stages;
  for (uint32_t stage = 0; stage < count; ++stage)
    if (repeats.recomputes[stage] && in_flight_kept[stage] > 0) stages.push_back(stage);
  const auto lacks = [&](uint32_t stage) { return count - stage - in_flight_kept[stage]; };
  std::stable_sort(stages.begin(), stages.end(), [&](uint32_t a, uint32_t b) { return lacks(a) < lacks(b); });
  for (const uint32_t stage : stages) {
    CandidatePlan other = repeats;
    other.recomputes[stage] = false;
    measure(other);
    if (!predict_if_it_fits(other) || other.step >= repeats.step) return;
    repeats = std::move(other);
  }
}

bool Evaluator::predict_if_it_fits(CandidatePlan& candidate, Duration give_up_at) const {
  const auto& most = candidate.in_flight_max;
  if (std::find(most.begin(), most.end(), 0u) != most.end()) return false;
  candidate.step = step_with(candidate, candidate.in_flight, give_up_at);
  return true;
}

// By stage, whether more memory would let it have more microbatches in flight when it needs them.
std::vector<bool> Evaluator::starved_stages(const CandidatePlan& candidate) const {
  const auto count = static_cast<uint32_t>(candidate.in_flight_max.size());
  std::vector<bool> starved;
  for (uint32_t stage = 0; stage < count; ++stage) {
    const auto& segments = candidate.pipeline.stages[stage].segments;
    starved.push_back(candidate.in_flight_max[stage] <
                          std::min(depth(candidate.proposal) - stage, request_.microbatches) &&
                      !segments.empty() && segments.back().backward);
  }
  return starved;
}

CandidatePlan Evaluator::deal_out(Proposal proposal) const {
  CandidatePlan candidate;
  const auto count = static_cast<uint32_t>(proposal.ends.size());
  const std::vector<uint32_t> stage_of_position = proposal.stages(model_);
  for (const uint32_t position : model_.position_of_op)
    candidate.stage_of_op.push_back(stage_of_position[position]);
  candidate.stage_of_op = dag::move_sums(*request_.graph, movable_, users_,
                                         dag::stages_by_origin(*request_.graph, candidate.stage_of_op));
  candidate.recomputes.assign(count, false);
  candidate.proposal = std::move(proposal);
  return candidate;
}

// What the stages do and hold, as they recompute or not. False when a stage cannot fit even if it does.
bool Evaluator::measure(CandidatePlan& candidate) {
  const auto count = static_cast<uint32_t>(candidate.recomputes.size());
  candidate.in_flight_max.clear();
  candidate.in_flight.clear();
  std::vector<StageDevice> on;
  for (uint32_t stage = 0; stage < count; ++stage) {
    const DeviceView& device = devices_[candidate.proposal.devices[stage]];
    on.push_back({device.rates, device.device_class, device.threads, candidate.recomputes[stage]});
  }
  auto pipeline = make_pipeline(model_, candidate.stage_of_op, on,
                                {.microbatches = request_.microbatches,
                                 .optimizer_slots = request_.optimizer_slots,
                                 .gradient_sums = request_.gradient_sums,
                                 .agreed_slots = request_.agreed_slots,
                                 .slot_type = request_.slot_type,
                                 .slots_among = request_.slots_among});
  if (!pipeline && !candidate.proposal.moved.empty()) return false;  // classes may wait for each other
  WEFT_CHECK_MSG(pipeline.has_value(), "a cut between positions goes through a group");
  candidate.pipeline = std::move(*pipeline);
  candidate.codecs =
      choose_codecs(request_.compression, candidate.pipeline, request_.cluster, candidate.proposal.devices);
  apply_codecs(candidate.codecs, candidate.pipeline);
  for (uint32_t stage = 0; stage < count; ++stage) {
    const StageWork& work = candidate.pipeline.stages[stage];
    const DeviceView& device = devices_[candidate.proposal.devices[stage]];
    const bool shared = device.host_memory.value == 0;
    const int64_t evaluating = request_.evaluates ? 1 : 0;
    Bytes lasting = work.persistent + work.microbatch * evaluating;
    if (shared) lasting += work.host;
    const int64_t free = device.memory.value - lasting.value;
    const int64_t most = work.microbatch.value > 0 ? free / work.microbatch.value : request_.microbatches;
    if (free < 0 || most < 1) note_shortage({lasting + work.microbatch, device.memory, device.name});
    if (!shared && work.host > device.host_memory) {
      note_shortage({work.host, device.host_memory, device.name + "'s host"});
      return false;
    }
    candidate.in_flight_max.push_back(
        free < 0 ? 0 : static_cast<uint32_t>(std::clamp<int64_t>(most, 0, request_.microbatches)));
    candidate.in_flight.push_back(
        std::min(candidate.in_flight_max.back(), depth(candidate.proposal) - stage));
  }
  return true;
}

bool Evaluator::is_short_of_memory(const CandidatePlan& candidate) const {
  for (uint32_t stage = 0; stage < candidate.in_flight.size(); ++stage)
    if (candidate.recomputes[stage] ||
        candidate.in_flight_max[stage] <
            std::min(2 * (depth(candidate.proposal) - stage), request_.microbatches))
      return true;
  return false;
}

// How many stages a microbatch passes: the first of a ring twice.
uint32_t Evaluator::depth(const Proposal& proposal) const {
  return static_cast<uint32_t>(proposal.ends.size()) + proposal.is_ring(model_);
}

Prediction Evaluator::predict_whole(const CandidatePlan& candidate) const {
  PredictRequest request = request_with(candidate, candidate.in_flight);
  request.records_path = true;
  return predict(request);
}

Duration Evaluator::step_with(const CandidatePlan& candidate, const std::vector<uint32_t>& in_flight,
                              Duration give_up_at) const {
  PredictRequest request = request_with(candidate, in_flight);
  request.step_only = true;
  if (give_up_at != Duration::max()) request.give_up_at = give_up_at;
  return predict(request).step;
}

PredictRequest Evaluator::request_with(const CandidatePlan& candidate,
                                       const std::vector<uint32_t>& in_flight) const {
  return {.pipeline = &candidate.pipeline,
          .cluster = &request_.cluster,
          .devices = candidate.proposal.devices,
          .microbatches = request_.microbatches,
          .in_flight = in_flight,
          .norm_round_trip = norm_round_trip(candidate),
          .copying = copying(candidate)};
}

// What copies of the state take of each uplink: no more than the state once in the shortest step that could
// be.
std::vector<double> Evaluator::copying(const CandidatePlan& candidate) const {
  std::vector<double> rates;
  if (!request_.copies) return rates;
  Duration shortest{1};
  for (const StageWork& work : candidate.pipeline.stages)
    shortest = std::max(shortest, work.busy(request_.microbatches));
  for (size_t stage = 0; stage < candidate.pipeline.stages.size(); ++stage) {
    const uint32_t device = candidate.proposal.devices[stage];
    const double allowed = static_cast<double>(copy_rate(*request_.copies, request_.cluster, device)) /
                           static_cast<double>(kCopiesYield);
    const double needed =
        static_cast<double>(candidate.pipeline.stages[stage].copied.value) / seconds(shortest);
    // Without a limit and on a line that nobody has measured: nothing is known to be held up.
    const double uplink = devices_[device].uplink;
    rates.push_back(uplink == kUnlimited ? 0 : std::min({allowed, needed, uplink / 2}));
  }
  return rates;
}

// The broker is taken to be as far away as the farthest two stages that speak to each other.
std::optional<Duration> Evaluator::norm_round_trip(const CandidatePlan& candidate) const {
  if (!request_.clips_norm) return std::nullopt;
  Duration farthest{};
  const auto& devices = candidate.proposal.devices;
  for (const Message& message : candidate.pipeline.messages)
    farthest = std::max(
        farthest, request_.cluster.path(devices[message.from_stage], devices[message.to_stage]).latency);
  return farthest * 2;
}

// What is given up as no faster than `enough` by far can make no difference to what comes after it.
void Evaluator::raise_in_flight(CandidatePlan& candidate, Duration enough) const {
  if (std::vector<uint32_t> usual = in_flight_of(candidate, 0); candidate.in_flight != usual) {
    candidate.step = step_with(candidate, usual);
    candidate.in_flight = std::move(usual);
  }
  for (uint32_t extra = 1; extra < request_.microbatches; extra = extra < 4 ? extra + 1 : extra * 3 / 2) {
    std::vector<uint32_t> in_flight = in_flight_of(candidate, extra);
    if (in_flight == candidate.in_flight) break;  // memory or the step's microbatches set the limit
    const Duration give_up_at =
        std::min(scaled(options_.worth_memory, candidate.step), scaled(1 / options_.worth_memory, enough));
    const Duration raised = step_with(candidate, in_flight, give_up_at);
    if (raised >= give_up_at) continue;
    if (seconds(raised) >= options_.worth_memory * seconds(candidate.step)) continue;
    candidate.in_flight = std::move(in_flight);
    candidate.step = raised;
  }
  fill_if_faster(candidate, enough);
}

// 1F1B, and so many more.
std::vector<uint32_t> Evaluator::in_flight_of(const CandidatePlan& candidate, uint32_t extra) const {
  std::vector<uint32_t> in_flight;
  in_flight.reserve(candidate.in_flight_max.size());
  for (uint32_t stage = 0; stage < candidate.in_flight_max.size(); ++stage)
    in_flight.push_back(std::min(candidate.in_flight_max[stage], depth(candidate.proposal) - stage + extra));
  return in_flight;
}

void Evaluator::note_shortage(const Shortage& shortage) {
  const auto missing = [](const Shortage& s) { return s.needed - s.there; };
  if (!shortage_ || missing(shortage) < missing(*shortage_)) shortage_ = shortage;
}

Duration Evaluator::shortest(const CandidatePlan& candidate) const {
  return least_step(request_with(candidate, candidate.in_flight));
}

double Evaluator::busiest(const Proposal& proposal) {
  std::vector<double> busy(proposal.devices.size(), 0);
  const std::vector<uint32_t> stage_of = proposal.stages(model_);
  for (uint32_t p = 0; p < model_.positions; ++p) {
    const uint32_t device = proposal.devices[stage_of[p]];
    auto& before = seconds_of_[device];
    if (!before) before = seconds_before(model_, devices_[device], request_.microbatches > 1);
    busy[stage_of[p]] += (*before)[p + 1] - (*before)[p];
  }
  return request_.microbatches * *std::max_element(busy.begin(), busy.end());
}

void Evaluator::fill_if_faster(CandidatePlan& candidate, Duration enough) const {
  if (candidate.in_flight == candidate.in_flight_max) return;
  const Duration give_up_at = std::min(scaled(options_.worth_memory, candidate.step), enough);
  const Duration filled = step_with(candidate, candidate.in_flight_max, give_up_at);
  if (filled >= give_up_at || seconds(filled) >= options_.worth_memory * seconds(candidate.step)) return;
  candidate.in_flight = candidate.in_flight_max;
  candidate.step = filled;
}

}  // namespace weft::plan
