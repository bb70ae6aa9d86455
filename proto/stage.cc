#include "proto/stage.h"

#include <algorithm>

#include "dag/gradient_order.h"

namespace weft::proto {

std::set<std::string_view> fixed_initializers(const AssignStage& assign) {
  std::set<std::string_view> fixed;
  for (const StageProgram& program : assign.programs)
    for (const dag::Initializer& initializer : program.graph->initializers())
      if (initializer.role == dag::InitializerRole::Frozen ||
          initializer.role == dag::InitializerRole::Buffer)
        fixed.insert(initializer.name);
  if (assign.serve)
    for (const TensorReference& tensor : assign.tensors) fixed.insert(tensor.key.name);
  return fixed;
}

std::optional<StepOfRun> step_of_run(const AssignStage& assign, uint64_t step) {
  if (!assign.local) return StepOfRun{step, step, assign.training.steps};
  const replicas::LocalSteps& local = assign.local->steps;
  const auto own = own_step(local, assign.seat.replica, step);
  return own ? std::optional(StepOfRun{own->step, own->scheduled, local.steps}) : std::nullopt;
}

namespace {

const dag::Graph* trained_graph(const AssignStage& assign) {
  for (const StageProgram& program : assign.programs)
    if (program.kind == ProgramKind::Train) return program.graph.get();
  return nullptr;
}

// Of what the replicas add up.
std::set<std::string_view> owned_tensors(const AssignStage& assign) {
  std::set<std::string_view> owned;
  for (const AgreedTensor& tensor : assign.exact->tensors)
    if (tensor.owner == assign.seat.replica) owned.insert(tensor.name);
  return owned;
}

}  // namespace

std::vector<std::string> updated_parameters(const AssignStage& assign) {
  const dag::Graph* graph = trained_graph(assign);
  if (graph == nullptr) return {};
  std::vector<std::string> names = dag::trained_parameters(*graph);
  if (!shares_slots(assign)) return names;
  const std::set<std::string_view> owned = owned_tensors(assign);
  std::erase_if(names, [&](const std::string& name) { return !owned.contains(name); });
  return names;
}

std::vector<dag::StateKey> copied_state(const AssignStage& assign) {
  const dag::Graph* graph = trained_graph(assign);
  if (graph == nullptr) return {};
  std::vector<dag::StateKey> keys = dag::trained_state(*graph, assign.training.optimizer);
  if (!shares_slots(assign)) return keys;
  const std::set<std::string_view> owned = owned_tensors(assign);
  std::erase_if(keys, [&](const dag::StateKey& key) { return !owned.contains(key.name); });
  return keys;
}

bool keeps_state(const AssignStage& assign) {
  if (!shares_slots(assign)) return !assign.exact || assign.seat.replica == 0;
  return std::any_of(assign.exact->tensors.begin(), assign.exact->tensors.end(),
                     [&](const AgreedTensor& tensor) { return tensor.owner == assign.seat.replica; });
}

MicrobatchShare microbatches_of(const AssignStage& assign) {
  if (assign.training.microbatch_size == 0) return {};  // of one that trains nothing
  const uint32_t all = assign.training.microbatches();
  if (!assign.exact) return {0, all};
  const uint32_t length = all / assign.training.gradient_ranges;
  const dag::RangeShare share = dag::share_of(assign.exact->ranges, assign.seat.replica);
  return {share.first * length, share.count * length};
}

bool ends_round(const AssignStage& assign, uint64_t step) {
  return assign.local && ends_round(assign.local->steps, step);
}

bool agrees_after(const AssignStage& assign, uint64_t step) {
  return assign.local && agrees_after(assign.local->steps, step);
}

}  // namespace weft::proto
