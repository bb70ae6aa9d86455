// The size of a microbatch, where the job leaves it open.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/result.h"

namespace weft::plan {

struct MicrobatchChoice {
  uint32_t size = 0;
  std::string why;  // for people: what the sizes beside it would take
};

// Among `sizes` (ascending, not empty) that of the fastest plan, by steps up and down from where the batch
// makes about 16 microbatches; of two that are about as fast the larger, for the statistics of a microbatch
// are better and its kernels busier. `seconds_of_sample` plans with a size; what it refuses is not taken.
// Errors: when it refuses every size, its error for the smallest one whose error is Infeasible, else for the
// one looked at first.
Result<MicrobatchChoice> choose_microbatch_size(
    std::span<const uint32_t> sizes, uint32_t batch_size,
    const std::function<Result<double>(uint32_t size)>& seconds_of_sample);

}  // namespace weft::plan
