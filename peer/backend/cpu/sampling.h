// Sums of a few elements each, which resampling and sampling between elements come down to.
#pragma once

#include "peer/backend/cpu/kernel.h"

namespace weft::peer::cpu {

// Row r of the result is the sum, in this order, of weights[k] times element from[k] for k in
// [starts[r], starts[r + 1]).
struct SparseRows {
  int64_t count;
  int32_t terms;          // of every row; -1: they differ
  const int32_t* starts;  // count + 1
  const int32_t* from;
  const float* weights;
};

int32_t terms_of(const int32_t* starts, int64_t count);

// y[r - begin] for rows [begin, end), where each row is one number.
void sum_rows(const SparseRows& rows, int64_t begin, int64_t end, const float* x, float* y);

KernelResult make_grid_sample(const KernelRequest& request);  // grid_sample.cc

}  // namespace weft::peer::cpu
