// In which formats the float32 values of a graph are computed, kept and sent. Three choices, because three
// things set them: what a device multiplies fast, what its memory holds, what a link carries.
#pragma once

#include "dag/arithmetic.h"
#include "dag/tensor.h"

namespace weft::peer {

using dag::Arithmetic;

struct Precision {
  Arithmetic compute = Arithmetic::F32;
  // Of activations and cotangents in a microbatch's arena. Weights, gradients and optimizer slots stay F32.
  dag::DType storage = dag::DType::F32;
  dag::DType wire = dag::DType::F32;  // of what stages send each other
  bool operator==(const Precision&) const = default;
};

}  // namespace weft::peer
