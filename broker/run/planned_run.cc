#include "broker/run/planned_run.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>

#include "dag/copied_bytes.h"
#include "dag/slots.h"

namespace weft::broker {

std::optional<uint32_t> PlannedRun::find(const plan::Seat& seat) const {
  for (uint32_t s = 0; s < stages.size(); ++s)
    if (stages[s].assignment->seat == seat) return s;
  return std::nullopt;
}

std::string PlannedRun::fields_of(uint32_t stage) const {
  const plan::Seat& seat = stages[stage].assignment->seat;
  return "stage=" + std::to_string(seat.stage) +
         (seat.replica > 0 ? " replica=" + std::to_string(seat.replica) : "");
}

const std::vector<proto::AgreedTensor>& agreed_tensors(const proto::AssignStage& stage) {
  static const std::vector<proto::AgreedTensor> kNone;
  return stage.local ? stage.local->tensors : stage.exact ? stage.exact->tensors : kNone;
}

// Nobody owes anything of a running statistic, or where nothing is lost.
replicas::ChosenTerms chosen_by(const PlannedRun& plan) {
  if (!plan.local_steps) return {};
  const replicas::ReplicaTerms& terms = plan.local_steps->terms;
  return {terms.every, terms.codec, terms.shares};
}

std::vector<KeptTensor> kept_between_agreements(const proto::AssignStage& stage, const dag::Graph& training) {
  if (!stage.local) return {};
  const replicas::ReplicaTerms& terms = stage.local->steps.terms;
  const bool has_momentum = terms.outer.type == replicas::OuterType::Nesterov;
  const bool owes = terms.codec.kind != compress::Kind::Dense;
  std::map<std::string_view, const dag::Initializer*> initializers;
  for (const dag::Initializer& initializer : training.initializers())
    if (initializer.role != dag::InitializerRole::RunningStatistic)
      initializers.emplace(initializer.name, &initializer);
  const std::vector<proto::AgreedTensor>& tensors = stage.local->tensors;
  const std::vector<uint32_t> parts = parts_of(tensors);
  std::vector<KeptTensor> kept;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto at = initializers.find(tensors[i].name);
    if (at == initializers.end()) continue;
    const dag::TensorSpec& whole = training.spec(at->second->value);
    const auto keep = [&](dag::StateSlot slot, uint32_t replica, dag::TensorSpec spec) {
      kept.push_back({dag::of_initializer(tensors[i].name, slot), std::move(spec)});
      kept.back().key.replica = replica;
    };
    const bool is_first = parts[i] < 2;  // of its tensor
    if (has_momentum && is_first) keep(dag::StateSlot::OuterMomentum, 0, whole);
    if (owes && is_first) keep(dag::StateSlot::Residue, stage.seat.replica, whole);
    if (owes && tensors[i].owner == stage.seat.replica)
      keep(dag::StateSlot::ReturnResidue, parts[i], spec_of(tensors[i], whole));
  }
  return kept;
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

int64_t kept_bytes(const PlannedRun& plan, uint32_t stage, const dag::Graph& graph) {
  int64_t bytes = 0;
  for (const KeptTensor& tensor : kept_between_agreements(*plan.stages[stage].assignment, graph))
    bytes += tensor.spec.bytes().value;
  return bytes;
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
  const dag::BesideParameter beside = dag::beside_parameter(plan.training.optimizer);
  const std::vector<std::string> updated = updated_parameters(*plan.stages[stage].assignment);
  const std::set<std::string_view> with_slots(updated.begin(), updated.end());
  int64_t bytes = graph != nullptr ? kept_bytes(plan, stage, *graph) : 0;
  for (const auto& tensor : plan.stages[stage].assignment->tensors) {
    if (!is_weight(tensor.key.slot)) continue;
    const bool has_slots = graph == nullptr || with_slots.contains(tensor.key.name);
    bytes += tensor.spec.bytes().value + (has_slots ? beside.bytes(tensor.spec) : 0);
  }
  return bytes;
}

int64_t copied_bytes(const PlannedRun& plan, uint32_t stage) {
  const dag::Graph* graph = trained_graph(plan, stage);
  const proto::AssignStage& assignment = *plan.stages[stage].assignment;
  if (graph == nullptr || !keeps_state(assignment)) return 0;
  if (!shares_slots(assignment))
    return dag::copied_bytes(*graph, dag::beside_parameter(plan.training.optimizer)).value +
           kept_bytes(plan, stage, *graph);
  std::map<std::string_view, dag::ValueId> values;
  for (const dag::Initializer& initializer : graph->initializers())
    values.emplace(initializer.name, initializer.value);
  Bytes bytes;
  for (const dag::StateKey& key : copied_state(assignment))
    bytes += spec_of_state(key.slot, graph->spec(values.at(key.name)), plan.training.optimizer.slots).bytes();
  return bytes.value;
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
