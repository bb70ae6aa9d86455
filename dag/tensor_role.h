// What a float tensor of a model's file is to training, and why.
#pragma once

#include <cstdint>

namespace weft::dag {

enum class TensorRole : uint8_t {
  Trained,
  Frozen,     // would be trained, but the job asked not to
  Constant,   // a number of a formula, a table, a mask; or nothing that a gradient reaches
  Statistic,  // the running mean or variance of a BatchNormalization
};

// Why a tensor has its role.
enum class RoleReason : uint8_t {
  Weight,        // an operand that is a weight, a bias, a slope or a table
  Free,          // nothing speaks against training it
  Named,         // `train` names it
  NotNamed,      // `train` names all that is trained, and not this
  Statistic,     // of a BatchNormalization
  Exponent,      // of Pow
  Limit,         // of Clip
  Attribute,     // an operand that is an attribute in other operator sets
  Number,        // a single number in a formula
  Factor,        // a single number that something is multiplied with: it may be learnt
  Mask,          // added in front of a Softmax
  State,         // what a recurrent op begins with, for each sample
  Low,           // it holds values of -10000 or less
  ConstantAxis,  // it is constant along `axis`
  Exported,      // the exported program says that it is no parameter
  Written,       // a Constant node that no weighted op reads
  Unreached,     // no gradient comes to it
  Unused,        // nothing reads it
  Angle,         // the cosines or sines of a rotation
  Repeat,        // ones that repeat an axis of length 1
};

}  // namespace weft::dag
