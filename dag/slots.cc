#include "dag/slots.h"

#include <algorithm>

#include "dag/finite.h"
#include "dag/slot_codes.h"

namespace weft::dag {
namespace {

bool is_optimizer_slot(StateSlot slot) {
  return slot == StateSlot::M || slot == StateSlot::V || slot == StateSlot::Momentum;
}

}  // namespace

TensorSpec spec_of_state(StateSlot slot, const TensorSpec& initializer, SlotType slots) {
  if (slots == SlotType::Float32 || !is_optimizer_slot(slot)) return initializer;
  return {DType::U8, {coded_slot_bytes(initializer.element_count())}};
}

int64_t BesideParameter::bytes(const TensorSpec& parameter) const {
  const int64_t own = parameter.bytes().value;
  const int64_t slot = type == SlotType::Float32 ? own : coded_slot_bytes(parameter.element_count());
  return (slots * slot + among - 1) / among + whole * own;
}

int64_t BesideParameter::bytes(int64_t parameters) const {
  const int64_t slot = type == SlotType::Float32 ? parameters : coded_slot_bytes(parameters / 4);
  return (slots * slot + among - 1) / among + whole * parameters;
}

BesideParameter beside_parameter(const OptimizerSpec& optimizer) {
  return {.slots = static_cast<uint32_t>(optimizer_slots(optimizer).size()), .type = optimizer.slots};
}

bool is_finite_state(const StateKey& key, const Tensor& tensor) {
  if (!is_optimizer_slot(key.slot) || tensor.dtype() != DType::U8) return is_below_infinity(tensor);
  // Scales come last, and any of them is finite.
  const auto codes = tensor.as<uint8_t>().first(static_cast<size_t>(coded_elements(tensor.element_count())));
  return std::find(codes.begin(), codes.end(), slot_format(key.slot).not_finite) == codes.end();
}

}  // namespace weft::dag
