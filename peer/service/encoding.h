// Tensors to payloads and back, as an edge's codec has it: on threads beside those of tasks and of links.
#pragma once

#include <optional>

#include "base/result.h"
#include "compress/codec.h"
#include "dag/tensor.h"
#include "proto/messages.h"

namespace weft::peer {

// Bytes that a codec made: a tensor of their own kind, until they are decoded.
inline dag::TensorSpec payload_spec(size_t size) { return {dag::DType::U8, {static_cast<int64_t>(size)}}; }

// What the header's codec makes of the tensor, with the random numbers that belong to its place in the run:
// made again it is the same bytes. A tensor that is not finite stays as it is, and `header` then says dense.
// REQUIRES: the tensor is of header.spec, and that is float32 where the codec is not dense.
dag::Tensor encode_tensor(proto::TensorHeader& header, const dag::Tensor& tensor, uint64_t seed,
                          compress::Scratch& scratch);
// ||x - decoded|| / ||x||: a decode and a pass over both. Nothing where it is not finite.
// REQUIRES: `payload` is what encode_tensor made of it, and not dense.
std::optional<double> relative_error_of(const proto::TensorHeader& header, const dag::Tensor& tensor,
                                        const dag::Tensor& payload, uint64_t seed,
                                        compress::Scratch& scratch);
// The inverse. Errors: Corrupted, from whatever bytes; what comes back is finite, or was sent dense.
Result<dag::Tensor> decode_tensor(const proto::TensorHeader& header, const dag::Tensor& payload,
                                  uint64_t seed);

// Whether what is learnt may depend on the tensor. An evaluation or prediction with a NaN harms nothing but
// itself, and a model may mean it so; of a served model's pass it harms one request (serve/spoilt_rows.h).
inline bool must_be_finite(const proto::TensorHeader& header) {
  return (header.program == proto::ProgramKind::Train || header.program == proto::ProgramKind::Agree) &&
         dag::is_float(header.spec.dtype);
}
// What replicas agree about is in the weights of all of them, whatever may be skipped.
inline bool is_taken_unseen(const proto::TensorHeader& header, bool takes_any) {
  return takes_any && header.program != proto::ProgramKind::Agree;
}
// False for what must be finite and has a NaN or +Inf, which a codec lets through dense: whether the sender
// diverged or lies, it would end in the weights. -Inf is how scores are masked. Where steps may
// be skipped it is not asked: what such a tensor does shows in the step's loss, gradients and statistics.
bool is_fit(const proto::TensorHeader& header, const dag::Tensor& tensor);
// What is said of one that may not be.
Error not_finite(const proto::TensorHeader& header, const plan::Seat& from);

}  // namespace weft::peer
