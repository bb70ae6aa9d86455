#include "dag/state.h"

#include <unordered_set>

namespace weft::dag {

namespace {
constexpr std::string_view kNames[] = {
#define WEFT_STATE_SLOT(slot, name) name,
    WEFT_STATE_SLOTS(WEFT_STATE_SLOT)
#undef WEFT_STATE_SLOT
};
}  // namespace

std::string_view to_string(StateSlot slot) { return kNames[static_cast<size_t>(slot)]; }

std::optional<StateSlot> find_state_slot(std::string_view name) {
  for (size_t i = 1; i < std::size(kNames); ++i)
    if (kNames[i] == name) return static_cast<StateSlot>(i);
  return std::nullopt;
}

std::string to_string(const StateKey& key) {
  constexpr std::string_view kOwners[] = {"", "edge ", "session "};
  std::string text = std::string(kOwners[static_cast<size_t>(key.owner)]) + key.name + "/" +
                     std::string(to_string(key.slot));
  if (key.replica == 0) return text;
  return key.slot == StateSlot::ReturnResidue ? text + " of part " + std::to_string(key.replica)
                                              : text + " of replica " + std::to_string(key.replica + 1);
}

StateKey of_initializer(std::string name, StateSlot slot) {
  return {StateOwner::Initializer, std::move(name), slot};
}

StateKey weight_key(const Initializer& initializer) {
  const bool changes = initializer.role == InitializerRole::RunningStatistic;
  return of_initializer(initializer.name, changes ? StateSlot::RunningStatistic : StateSlot::Value);
}

std::vector<StateSlot> optimizer_slots(const OptimizerSpec& optimizer) {
  switch (optimizer.type) {
    case OptimizerType::Sgd:
      if (optimizer.momentum == 0) return {};
      return {StateSlot::Momentum};
    case OptimizerType::Adam:
    case OptimizerType::AdamW:
      return {StateSlot::M, StateSlot::V};
  }
  return {};
}

std::vector<std::string> trained_parameters(const Graph& training) {
  std::unordered_set<std::string_view> trained;
  for (const GraphOutput& output : training.outputs())
    if (output.role == OutputRole::Gradient) trained.insert(output.name);
  std::vector<std::string> names;
  for (const Initializer& initializer : training.initializers())
    if (trained.contains(initializer.name)) names.push_back(initializer.name);
  return names;
}

std::vector<StateKey> trained_state(const Graph& training, const OptimizerSpec& optimizer) {
  const std::vector<StateSlot> slots = optimizer_slots(optimizer);
  std::vector<StateKey> keys;
  for (const std::string& name : trained_parameters(training)) {
    keys.push_back(of_initializer(name));
    for (const StateSlot slot : slots) keys.push_back(of_initializer(name, slot));
  }
  for (const GraphOutput& output : training.outputs())
    if (output.role == OutputRole::StateUpdate)
      keys.push_back(of_initializer(output.name, StateSlot::RunningStatistic));
  return keys;
}

}  // namespace weft::dag
