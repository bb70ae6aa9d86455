// Numbers that may be learnt from.
#pragma once

#include "dag/tensor.h"

namespace weft::dag {

// No NaN and no +Inf; -Inf is how scores are masked. True of what is no float.
bool is_below_infinity(const Tensor& tensor);

}  // namespace weft::dag
