// Names of what lasts from step to step: weights, optimizer slots, and what links and sessions carry over.
// One list for everything that holds, stores or sends such tensors: executors, checkpoints, recovery, the
// wire.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dag/graph.h"
#include "dag/optimizer.h"

namespace weft::dag {

// What StateKey::name names.
enum class StateOwner : uint8_t {
  Initializer,  // of the graph
  Edge,         // between two stages: what a compressor carries over
  Session,      // of a generation: what attention keeps
};

// What a tensor is to its owner, and how checkpoints and the wire call it. In the order of the names, so that
// keys sort like them.
#define WEFT_STATE_SLOTS(X)                                                                   \
  X(None, "")                              /* no state: a prediction, by its output's name */ \
  X(M, "m")                                /* adam, adamw: mean of gradients */               \
  X(Momentum, "momentum")                  /* sgd */                                          \
  X(OuterMomentum, "outer_momentum")       /* of the outer rule: replicas/agreement.h */      \
  X(Residue, "residue")                    /* what a replica owes of its difference */        \
  X(ReturnResidue, "return_residue")       /* what is owed of the replicas' mean */           \
  X(RunningStatistic, "running_statistic") /* an initializer that the forward pass changes */ \
  X(V, "v")                                /* adam, adamw: mean of gradients' squares */      \
  X(Value, "value")                        /* any other initializer */

enum class StateSlot : uint8_t {
#define WEFT_STATE_SLOT(slot, name) slot,
  WEFT_STATE_SLOTS(WEFT_STATE_SLOT)
#undef WEFT_STATE_SLOT
};
std::string_view to_string(StateSlot slot);
// Nothing for a name that is no slot's, and for None's.
std::optional<StateSlot> find_state_slot(std::string_view name);
// An initializer's own tensor: part of the model, not only of its training.
constexpr bool is_weight(StateSlot slot) {
  return slot == StateSlot::Value || slot == StateSlot::RunningStatistic;
}

struct StateKey {
  StateOwner owner = StateOwner::Initializer;
  std::string name{};
  StateSlot slot = StateSlot::Value;
  // Whose it is, of what replicas with local steps have each for themselves: optimizer slots and Residue. Of
  // ReturnResidue: which part of the tensor, counted from 1 (replicas/parts.h); 0: it is whole.
  uint32_t replica = 0;
  auto operator<=>(const StateKey&) const = default;
};
std::string to_string(const StateKey& key);  // "conv.weight/value", "conv.weight/m of replica 2"

StateKey of_initializer(std::string name, StateSlot slot = StateSlot::Value);
StateKey weight_key(const Initializer& initializer);
// The weight of an initializer in a map by StateKey, under whichever slot it was saved: end() when there is
// none.
template <typename Map>
auto find_weight(Map& tensors, const std::string& initializer) {
  const auto value = tensors.find(of_initializer(initializer));
  if (value != tensors.end()) return value;
  return tensors.find(of_initializer(initializer, StateSlot::RunningStatistic));
}

// What an update rule keeps beside a parameter, zero at the start: nothing or Momentum for sgd, M and V for
// adam and adamw. As what tensors: dag/slots.h.
std::vector<StateSlot> optimizer_slots(const OptimizerSpec& optimizer);

// The parameters that a training graph has a gradient of, in the order of initializers: that in which their
// sums of squares are added.
std::vector<std::string> trained_parameters(const Graph& training);

// What training changes: trained parameters, each with the optimizer's slots, in the order of initializers;
// then running statistics, in the order of outputs. A checkpoint is this, and so is what recovery copies; the
// rest stands in the model's file.
std::vector<StateKey> trained_state(const Graph& training, const OptimizerSpec& optimizer);

}  // namespace weft::dag
