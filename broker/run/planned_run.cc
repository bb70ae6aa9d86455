#include "broker/run/planned_run.h"

#include <algorithm>

#include "dag/copied_bytes.h"

namespace weft::broker {

std::optional<uint32_t> PlannedRun::find(const plan::Seat& seat) const {
  for (uint32_t s = 0; s < stages.size(); ++s)
    if (stages[s].assignment->seat == seat) return s;
  return std::nullopt;
}

double codec_ratio(const PlannedRun& plan) {
  double dense = 0, wire = 0;
  for (const PlannedStage& stage : plan.stages)
    for (const proto::StageProgram& program : stage.assignment->programs) {
      if (program.kind != proto::ProgramKind::Train) continue;
      for (const proto::EdgeEnd& end : program.sends) {
        if (end.codec.kind == compress::Kind::Dense) continue;
        const dag::TensorSpec& spec = program.graph->spec(end.value);
        dense += static_cast<double>(spec.bytes().value);
        wire += static_cast<double>(proto::payload_bytes(spec, end.codec).value);
      }
    }
  return wire > 0 ? dense / wire : 0;
}

namespace {
const dag::Graph* trained_graph(const PlannedRun& plan, uint32_t stage) {
  for (const proto::StageProgram& program : plan.stages[stage].assignment->programs)
    if (program.kind == proto::ProgramKind::Train) return program.graph.get();
  return nullptr;
}

template <typename Bytes>
int64_t largest(const PlannedRun& plan, const Bytes& bytes_of) {
  int64_t most = 0;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) most = std::max(most, bytes_of(plan, s));
  return most;
}
}  // namespace

int64_t loaded_bytes(const PlannedRun& plan, uint32_t stage) {
  const dag::Graph* graph = trained_graph(plan, stage);
  const auto slots = static_cast<int64_t>(optimizer_slots(plan.training.optimizer).size());
  int64_t bytes = 0;
  for (const auto& tensor : plan.stages[stage].assignment->tensors) {
    if (!is_weight(tensor.key.slot)) continue;
    const bool trained =
        graph == nullptr || graph->find_output(dag::OutputRole::Gradient, tensor.key.name) != nullptr;
    bytes += tensor.spec.bytes().value * (trained ? 1 + slots : 1);
  }
  return bytes;
}

int64_t copied_bytes(const PlannedRun& plan, uint32_t stage) {
  const dag::Graph* graph = trained_graph(plan, stage);
  if (graph == nullptr) return 0;
  const auto slots = static_cast<uint32_t>(optimizer_slots(plan.training.optimizer).size());
  return dag::copied_bytes(*graph, slots).value;
}

int64_t largest_loaded_bytes(const PlannedRun& plan) { return largest(plan, loaded_bytes); }
int64_t largest_copied_bytes(const PlannedRun& plan) { return largest(plan, copied_bytes); }

double slowest_copy_seconds(const PlannedRun& plan, uint64_t usual_rate) {
  double slowest = 0;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    const uint64_t own = plan.stages[s].assignment->copy_rate, rate = own > 0 ? own : usual_rate;
    if (rate > 0)
      slowest = std::max(slowest, static_cast<double>(copied_bytes(plan, s)) / static_cast<double>(rate));
  }
  return slowest;
}

}  // namespace weft::broker
