// Whole numbers in as few bytes as hold all of them: how microbatches of data travel. Tokens are written as
// 64 bits each, of which two bytes say something.
#pragma once

#include "base/result.h"
#include "dag/tensor.h"

namespace weft::dag {

// The same numbers in the shortest type that holds each of them; the tensor itself where that is its own, or
// where it is of another type than I32 and I64.
Tensor narrowed(const Tensor& tensor);
// Back in that type. The tensor itself where it is of that spec. InvalidArgument: of another shape, or of a
// type that `narrowed` does not make of that.
Result<Tensor> widened(const Tensor& tensor, const TensorSpec& spec);

}  // namespace weft::dag
