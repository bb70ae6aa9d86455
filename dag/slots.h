// What stands beside a parameter, and how large it is. Whoever claims, checks, counts or sends optimizer
// slots asks here.
#pragma once

#include <cstdint>

#include "base/units.h"
#include "dag/optimizer.h"
#include "dag/state.h"
#include "dag/tensor.h"

namespace weft::dag {

// A tensor of the state, beside or as an initializer of that spec. Optimizer slots in eight bits are one row
// of bytes: a code for each element, then a scale for each block of them (dag/slot_codes.h). All else is as
// the initializer.
TensorSpec spec_of_state(StateSlot slot, const TensorSpec& initializer, SlotType slots);

// Beside each parameter.
struct BesideParameter {
  uint32_t slots = 0;  // of the optimizer
  SlotType type = SlotType::Float32;
  uint32_t whole = 0;  // further tensors, of the parameter's own spec
  // Each parameter's optimizer slots lie with one of so many, by turns: a part of all slots is with each.
  uint32_t among = 1;

  int64_t bytes(const TensorSpec& parameter) const;
  // The same for float32 parameters of so many bytes together: at most a byte a slot and parameter less.
  int64_t bytes(int64_t parameters) const;
};
BesideParameter beside_parameter(const OptimizerSpec& optimizer);

// An optimizer slot is finite where all its numbers are, however they are kept.
bool is_finite_state(const StateKey& key, const Tensor& tensor);

}  // namespace weft::dag
