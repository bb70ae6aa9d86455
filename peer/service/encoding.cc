#include "peer/service/encoding.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "dag/finite.h"
#include "replicas/agreement.h"

namespace weft::peer {

namespace {

// Two passes of a comparison are the same to the bit.
uint32_t drawn_as(uint32_t microbatch) {
  constexpr auto kAdded = static_cast<uint32_t>(proto::ComparisonPass::Added);
  return proto::is_comparison(microbatch) ? proto::kComparisonMicrobatch + kAdded : microbatch;
}

// Evaluation counts its microbatches and edges anew.
compress::Draw draw_of(const proto::TensorHeader& header, uint64_t seed) {
  const bool is_mean = header.direction == proto::Direction::Backward;  // or the sum of all ranges
  if (header.program == proto::ProgramKind::Agree)
    return replicas::draw_of(seed, header.step, header.edge, is_mean ? replicas::kOwner : header.replica);
  // Its number is one of all parameters: counted from above, no link's edge has it.
  if (header.program == proto::ProgramKind::Sum)
    return {.seed = seed,
            .step = header.step,
            .microbatch = header.microbatch,
            .edge = ~header.edge,
            .backward = is_mean,
            .replica = header.replica};
  return {.seed = seed ^ (static_cast<uint64_t>(header.program) << 62),
          .step = header.step,
          .microbatch = drawn_as(header.microbatch),
          .edge = header.edge,
          .backward = header.direction == proto::Direction::Backward,
          .replica = header.replica};
}

bool are_finite(std::span<const float> numbers) {
  return std::all_of(numbers.begin(), numbers.end(), [](float number) { return std::isfinite(number); });
}

}  // namespace

bool is_fit(const proto::TensorHeader& header, const dag::Tensor& tensor) {
  if (header.codec.kind != compress::Kind::Dense) return true;
  if (header.program == proto::ProgramKind::Agree) return are_finite(tensor.as<float>());
  if (!must_be_finite(header)) return true;
  if (tensor.spec().dtype == dag::DType::F32) return compress::are_below_infinity(tensor.as<float>());
  return dag::is_below_infinity(tensor);
}

Error not_finite(const proto::TensorHeader& header, const plan::Seat& from) {
  return {ErrorCode::OutOfRange, "a NaN or an infinity came from " + plan::to_string(from) + ": edge " +
                                     std::to_string(header.edge) + ", step " + std::to_string(header.step) +
                                     ", microbatch " + std::to_string(header.microbatch)};
}

dag::Tensor encode_tensor(proto::TensorHeader& header, const dag::Tensor& tensor, uint64_t seed,
                          compress::Scratch& scratch) {
  WEFT_CHECK(tensor.spec() == header.spec);
  if (header.codec.kind == compress::Kind::Dense) return tensor;
  const auto count = static_cast<size_t>(tensor.element_count());
  const auto bytes = dag::allocate_tensor_bytes(compress::wire_bytes(header.codec, count));
  const auto size = compress::encode(header.codec, tensor.as<float>(), draw_of(header, seed),
                                     {bytes.get(), compress::wire_bytes(header.codec, count)}, scratch);
  if (size) return {payload_spec(*size), bytes};
  header.codec = {};
  return tensor;
}

std::optional<double> relative_error_of(const proto::TensorHeader& header, const dag::Tensor& tensor,
                                        const dag::Tensor& payload, uint64_t seed,
                                        compress::Scratch& scratch) {
  const double error = compress::relative_error(header.codec, tensor.as<float>(), draw_of(header, seed),
                                                payload.bytes(), scratch);
  return std::isfinite(error) ? std::optional(error) : std::nullopt;
}

Result<dag::Tensor> decode_tensor(const proto::TensorHeader& header, const dag::Tensor& payload,
                                  uint64_t seed) {
  if (header.codec.kind == compress::Kind::Dense) return payload;
  dag::Tensor tensor(header.spec, dag::allocate_tensor_bytes(static_cast<size_t>(header.spec.bytes().value)));
  const Status decoded =
      compress::decode(header.codec, draw_of(header, seed), payload.bytes(), tensor.mutable_as<float>());
  if (!decoded)
    return fail(decoded.error().within(
        "edge " + std::to_string(header.edge) + ", step " + std::to_string(header.step) + ", microbatch " +
        std::to_string(header.microbatch) + ", as " + compress::name(header.codec)));
  return tensor;
}

}  // namespace weft::peer
