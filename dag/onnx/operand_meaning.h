// Internal to dag/onnx: what an operand means to the operator that reads it, whatever its value.
#pragma once

#include <span>
#include <string_view>

#include "dag/onnx/lowering.h"
#include "dag/onnx/roles.h"

namespace weft::onnx {

struct OperandMeaning {
  std::string_view domain = {};  // "": ONNX's own
  std::string_view op_type = {};
  OperandSet weights = kNoOperand;            // weights, biases, slopes, tables
  OperandSet numbers = kNoOperand;            // what other operator sets have as an attribute, and the like
  RoleReason reason = RoleReason::Attribute;  // of `numbers`
  // Its result has channels, which the weights made: what is added right behind is a bias.
  bool makes_channels = false;
};
std::span<const OperandMeaning> operand_meanings();
// nullptr for an operator without any.
const OperandMeaning* find_meaning(std::string_view domain, std::string_view op_type);

// Hands its first operand's values on: in another shape, order or type.
bool is_view(std::string_view domain, std::string_view op_type);

}  // namespace weft::onnx
