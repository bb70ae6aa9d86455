#include "plan/predict.h"

#include <algorithm>

#include "base/check.h"
#include "plan/simulation.h"

namespace weft::plan {
namespace {

constexpr uint32_t kMicrobatchesSimulated = 192;

Duration times(Duration once, double count) {
  return Duration(static_cast<int64_t>(std::min(static_cast<double>(once.count()) * count, 9e18)));
}

// How long lines and links are busy in a step.
void add_up(const PredictRequest& request, const std::vector<PathTimes>& paths, Prediction& result) {
  const auto count = request.pipeline->stages.size();
  result.uplink.resize(count);
  result.downlink.resize(count);
  const auto each_step = [&](int64_t once) { return times(Duration(once), request.microbatches); };
  const auto& messages = request.pipeline->messages;
  for (size_t stage = 0; stage < count; ++stage)
    result.downlink[stage] += each_step(paths[messages.size() + stage].downlink);
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (i == 0 || paths[i].pair != paths[i - 1].pair)
      result.sending.push_back({message.from_stage, message.to_stage, {}});
    result.sending.back().busy += each_step(paths[i].path);
    result.uplink[message.from_stage] += each_step(paths[i].uplink);
    result.downlink[message.to_stage] += each_step(paths[i].downlink);
  }
}

// What all simulated steps take where each takes as long as this.
int64_t total_of(Duration step) {
  return step.count() < Simulation::kNever / kStepsSimulated ? step.count() * kStepsSimulated
                                                             : Simulation::kNever;
}

void add_path(const std::vector<CriticalPart>& path, Prediction& result) {
  result.critical = shares_of(path, result.step);
  const auto later =
      std::find_if(path.rbegin(), path.rend(), [](const auto& part) { return part.step == 0; });
  result.timeline.critical.assign(path.begin(), later.base());
}

}  // namespace

Duration least_step(const PredictRequest& request) {
  Prediction sums;
  add_up(request, path_times(request), sums);
  Duration most{};
  for (const StageWork& stage : request.pipeline->stages)
    most = std::max(most, stage.busy(request.microbatches));
  for (const auto& lines : {sums.uplink, sums.downlink})
    for (const Duration busy : lines) most = std::max(most, busy);
  for (const Prediction::Sending& link : sums.sending) most = std::max(most, link.busy);
  return most;
}

Prediction predict(const PredictRequest& request) {
  const auto count = static_cast<uint32_t>(request.pipeline->stages.size());
  WEFT_CHECK(request.devices.size() == count && request.in_flight.size() == count);
  Prediction result;
  const std::vector<PathTimes> paths = path_times(request);
  const uint32_t simulated = std::min(request.microbatches, kMicrobatchesSimulated);
  const bool is_whole = simulated == request.microbatches;
  Simulation simulation(request, paths, simulated);
  const std::optional<int64_t> played =
      simulation.run(is_whole && request.give_up_at ? total_of(*request.give_up_at) : Simulation::kNever);
  if (!played) {
    result.step = *request.give_up_at;
    return result;
  }
  int64_t total = *played;
  if (!is_whole) {
    const uint32_t fewer = simulated * 2 / 3;
    const int64_t shorter = Simulation(request, paths, fewer).run().value();
    total += times(Duration(total - shorter),
                   static_cast<double>(request.microbatches - simulated) / (simulated - fewer))
                 .count();
  }
  result.step = Duration((total + kStepsSimulated - 1) / kStepsSimulated);
  if (request.step_only) return result;
  result.timeline = simulation.timeline();
  if (is_whole) result.order = simulation.order();
  if (request.records_path) add_path(simulation.path(), result);
  for (const StageWork& stage : request.pipeline->stages)
    result.busy.push_back(stage.busy(request.microbatches));
  add_up(request, paths, result);
  return result;
}

}  // namespace weft::plan
