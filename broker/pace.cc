#include "broker/pace.h"

#include <algorithm>
#include <map>

namespace weft::broker {
namespace {

// What the stage runs for most of the time.
const proto::StageProgram* main_program(const proto::AssignStage& stage) {
  const proto::StageProgram* main = nullptr;
  for (const proto::StageProgram& program : stage.programs)
    if (!main || program.kind == proto::ProgramKind::Train) main = &program;
  return main;
}

}  // namespace

Pace::Pace(const PlannedRun& plan, const std::vector<Candidate>& candidates, plan::ClusterView cluster)
    : candidates_(candidates),
      cluster_(std::move(cluster)),
      microbatches_(std::max(1u, plan.microbatches)),
      stages_(plan.stages.size()) {
  std::map<std::pair<uint32_t, uint32_t>, double> bytes;
  for (uint32_t s = 0; s < stages_.size(); ++s) {
    stages_[s].seconds = plan.stages[s].microbatch_seconds;
    const proto::StageProgram* program = main_program(*plan.stages[s].assignment);
    if (!program) continue;
    stages_[s].groups = plan::group_costs(*program->graph);
    for (const proto::EdgeEnd& end : program->sends)
      bytes[{s, end.stage}] += static_cast<double>(program->graph->spec(end.value).bytes().value);
  }
  for (const auto& [ends, size] : bytes)
    if (ends.second < stages_.size()) sent_.push_back({ends.first, ends.second, size});
}

double Pace::compute_seconds(uint32_t stage, uint32_t candidate) const {
  const plan::Rates& rates = candidates_[candidate].device.rates;
  if (stages_[stage].groups.empty() || !(rates.memory_bytes_per_second > 0)) return stages_[stage].seconds;
  double sum = 0;
  for (const plan::GroupCost& group : stages_[stage].groups) sum += plan::seconds_of(group, rates);
  return sum;
}

double Pace::step_seconds(std::span<const uint32_t> placed) const {
  double busiest = 0, sum = 0;
  const auto add = [&](double busy, double latency) {
    busiest = std::max(busiest, busy);
    sum += busy + latency;
  };
  for (uint32_t s = 0; s < stages_.size(); ++s) add(compute_seconds(s, placed[s]), 0);
  std::vector<double> up(stages_.size(), 0), down(stages_.size(), 0);
  for (const Sent& sent : sent_) {
    const uint32_t from = placed[sent.from_stage], to = placed[sent.to_stage];
    const plan::LinkView link = cluster_.link(from, to);
    add(sent.bytes / link.bytes_per_second, seconds(link.latency));
    up[sent.from_stage] += sent.bytes / cluster_.devices()[from].uplink;
    down[sent.to_stage] += sent.bytes / cluster_.devices()[to].downlink;
  }
  for (uint32_t s = 0; s < stages_.size(); ++s) busiest = std::max({busiest, up[s], down[s]});
  return sum + (microbatches_ - 1) * busiest;
}

}  // namespace weft::broker
