// What the backend itself has kernels for, beside those of ops: sums of microbatches' gradients, squares of
// all gradients, and the optimizers' rules on all parameters. Hundreds of tensors are a few launches.
#pragma once

#include <span>

#include "dag/optimizer.h"
#include "peer/backend/backend.h"
#include "peer/backend/cuda/device.h"

namespace weft::peer::cuda {

// All on Compute. REQUIRES of all: tensors are F32 and begin at multiples of 16 bytes.

// into += from, elements both.
Status submit_accumulate(Device& device, Array<const float> from, Array<float> into);

// sums[i]: of the squares of sources[i], in double, as Backend::begin_sums_of_squares says: within blocks of
// kUpdateChunk elements in an order that the block's length fixes, then blocks in one that their number
// fixes. REQUIRES: `sums` has an element a source, `scratch` has sums_scratch_bytes(sources) bytes until all
// is done: at most 960 KiB, unless one source alone has more than 2 GB.
int64_t sums_scratch_bytes(std::span<const TensorView> sources);
Status submit_sums_of_squares(Device& device, std::span<const TensorView> sources, Array<double> sums,
                              std::byte* scratch);

// One step of dag/optimizer.h for all. REQUIRES: slots are as dag::optimizer_slots has them.
Status submit_update(Device& device, const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                     std::span<const ParameterUpdate> parameters);

}  // namespace weft::peer::cuda
