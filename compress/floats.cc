// Dense: count float32. Float16 and BFloat16: count 16-bit floats.
//
// Numbers beyond the range of 16 bits become its largest finite one, not an infinity: that is the nearest
// there is, as clipping a gradient would have it, where an infinity would make NaN of every product behind
// it.
#include <cstring>

#include "compress/kinds.h"

namespace weft::compress {
namespace {

int64_t length(auto span) { return static_cast<int64_t>(span.size()); }

size_t no_scratch(const Codec&, size_t) { return 0; }

std::optional<size_t> encode_dense(const Codec&, std::span<const float> x, const Draw&,
                                   std::span<std::byte> out, std::span<std::byte>) {
  if (!x.empty()) std::memcpy(out.data(), x.data(), x.size_bytes());
  return x.size_bytes();
}

Status decode_dense(const Codec&, const Draw&, std::span<const std::byte> payload, std::span<float> out) {
  WEFT_TRY_STATUS(check_length(payload, out.size_bytes()));
  if (!out.empty()) std::memcpy(out.data(), payload.data(), payload.size());
  return {};
}

template <auto kLoop>
std::optional<size_t> encode_16(const Codec&, std::span<const float> x, const Draw&, std::span<std::byte> out,
                                std::span<std::byte>) {
  if (!(loops().*kLoop)(x.data(), octets(out), length(x))) return std::nullopt;
  return x.size() * 2;
}

template <auto kLoop>
Status decode_16(const Codec&, const Draw&, std::span<const std::byte> payload, std::span<float> out) {
  WEFT_TRY_STATUS(check_length(payload, out.size() * 2));
  if ((loops().*kLoop)(octets(payload), out.data(), length(out))) return {};
  return fail(ErrorCode::Corrupted, "a 16-bit float that is not finite");
}

}  // namespace

const KindRow kDenseRow = {[](const Codec&, size_t count) { return count * 4; }, no_scratch, encode_dense,
                           decode_dense};
const KindRow kFloat16Row = {[](const Codec&, size_t count) { return count * 2; }, no_scratch,
                             encode_16<&LoopTable::to_half>, decode_16<&LoopTable::from_half>};
const KindRow kBFloat16Row = {[](const Codec&, size_t count) { return count * 2; }, no_scratch,
                              encode_16<&LoopTable::to_bfloat>, decode_16<&LoopTable::from_bfloat>};

}  // namespace weft::compress
