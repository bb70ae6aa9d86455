// Matrices of weights that lie in memory in fewer bits, as operands of this backend's kernels.
#pragma once

#include "dag/stored_matrix.h"
#include "peer/backend/cuda/kernels/stored.h"
#include "peer/backend/cuda/operands.h"

namespace weft::peer::cuda {

// Such an operand, to be made float32. Its numbers are operand `first`, then scale and zero.
class StoredOperand {
 public:
  StoredOperand(const KernelRequest& request, size_t first);

  const dag::StoredMatrix& matrix() const { return matrix_; }
  int64_t count() const { return matrix_.rows * matrix_.columns; }
  // Whether one launch can make as many numbers.
  bool can_widen(int64_t count) const;
  Status widen(const Call& call, const Array<float>& to) const;
  Status widen_rows(const Call& call, const Indices& indices, const Array<float>& to) const;

 private:
  WidenStored parameters(const Call& call, const Array<float>& to) const;

  dag::StoredMatrix matrix_;
  Operand numbers_, scale_{-1, 0}, zero_{-1, 0};
};

// StoredWeight: the matrix, or rows of it, as float32.
KernelResult make_stored_weight(const KernelRequest& request);

}  // namespace weft::peer::cuda
