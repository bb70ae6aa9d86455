// Matrices of weights that lie in memory in fewer bits, as operands of this backend's kernels.
#pragma once

#include "dag/stored_matrix.h"
#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// Where such a matrix stands in the signature.
struct StoredOperand {
  dag::StoredMatrix matrix;
  int numbers = -1, scale = -1, zero = -1;

  // Its numbers are operand `first`, then scale and zero.
  static StoredOperand of(const KernelRequest& request, size_t first);
  StoredArgs args(const Call& call) const;
};

// StoredWeight: the matrix, or rows of it, as float32.
KernelResult make_stored_weight(const KernelRequest& request);

}  // namespace weft::peer::cpu
