// In which formats the float32 values of a graph are computed, kept and sent. Three choices, because three
// things set them: what a device multiplies fast, what its memory holds, what a link carries.
#pragma once

#include <cstdint>
#include <string_view>

#include "dag/tensor.h"

namespace weft::peer {

// What matrix products and convolutions round their operands to. Their sums, and all other ops, are float32
// or wider.
enum class Arithmetic : uint8_t { F32, TF32, BF16 };
std::string_view to_string(Arithmetic arithmetic);  // "f32"

struct Precision {
  Arithmetic compute = Arithmetic::F32;
  // Of activations and cotangents in a microbatch's arena. Weights, gradients and optimizer slots stay F32.
  dag::DType storage = dag::DType::F32;
  dag::DType wire = dag::DType::F32;  // of what stages send each other
  bool operator==(const Precision&) const = default;
};

}  // namespace weft::peer
