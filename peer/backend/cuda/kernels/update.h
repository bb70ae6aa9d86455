// What is done to many tensors by one launch: the optimizers' rules and the squares of gradients. A launch
// has a table of tensors, cut into chunks that the blocks take one each; where a tensor stands in which table
// changes no bit of its results.
#pragma once

#include "peer/backend/cuda/kernels/launch.h"

namespace weft::peer::cuda {

inline constexpr int32_t kUpdateThreads = 256;
inline constexpr int64_t kUpdateChunk = 4096;  // elements

// into += from. A chunk a block. Both begin at multiples of 16 bytes.
struct Accumulate {
  Array<const float> from;
  Array<float> into;
};
extern const EntryOf<Accumulate> k_accumulate;

// Chunks starts[i] .. starts[i + 1] are tensor i's; starts[0] is the first block's, and the blocks of a
// launch are as many as its chunks.
inline constexpr int32_t kSquaresTensors = 128;
struct Squares {
  Array<const float> sources[kSquaresTensors];
  int64_t starts[kSquaresTensors + 1];
  int32_t tensors;
  Array<double> partials;  // by chunk
};
extern const EntryOf<Squares> k_squares;
// sums[first + i] = the partials of tensor i, in order. A block a tensor.
struct SquaresTotals {
  int64_t starts[kSquaresTensors + 1];
  Array<const double> partials;
  Array<double> sums;
  int64_t first;
};
extern const EntryOf<SquaresTotals> k_squares_totals;

// All of one tensor, of its gradient's count of elements, each at a multiple of 16 bytes.
struct UpdatedTensor {
  Array<float> parameter;
  Array<const float> gradient;
  Array<float> first, second;  // momentum, or the two moments; or absent
};
// The same, with slots in eight bits: codes, then scales (dag/slot_codes.h).
struct CodedTensor {
  Array<float> parameter;
  Array<const float> gradient;
  Array<uint8_t> first, second;  // the second may be absent
};
inline constexpr int32_t kUpdateTensors = 48;
template <typename Tensor>
struct UpdateTable {
  Tensor tensors[kUpdateTensors];
  int64_t starts[kUpdateTensors + 1];  // as Squares::starts, from 0
  int32_t count;
};

struct SgdArgs {
  float learning_rate, weight_decay, momentum, keep, gradient_scale;
  int32_t first, nesterov;
};
struct Sgd {
  UpdateTable<UpdatedTensor> table;
  SgdArgs args;
};
extern const EntryOf<Sgd> k_sgd;

struct AdamArgs {
  float decay_factor, weight_decay;
  float beta1, one_minus_beta1, beta2, one_minus_beta2;
  float step_size, inverse_sqrt_correction2, epsilon, gradient_scale;
};
struct Adam {
  UpdateTable<UpdatedTensor> table;
  AdamArgs args;
};
extern const EntryOf<Adam> k_adam;

// With slots in eight bits. `draw` is of the update.
inline constexpr int32_t kSlotBlock = 256;
struct CodedSgd {
  UpdateTable<CodedTensor> table;
  SgdArgs args;
  uint32_t draw;
};
extern const EntryOf<CodedSgd> k_coded_sgd;
struct CodedAdam {
  UpdateTable<CodedTensor> table;
  AdamArgs args;
  uint32_t draw;
};
extern const EntryOf<CodedAdam> k_coded_adam;

// What a launch may be given.
static_assert(sizeof(Squares) <= 4096 && sizeof(Sgd) <= 4096 && sizeof(Adam) <= 4096 &&
              sizeof(CodedSgd) <= 4096 && sizeof(CodedAdam) <= 4096);

}  // namespace weft::peer::cuda
