// The table of kinds, and what goes for all of them.
#include "compress/codec.h"

#include <bit>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "base/rng.h"
#include "compress/kinds.h"

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace weft::compress {
namespace {

static_assert(std::endian::native == std::endian::little, "payloads are written as they lie in memory");

const KindRow& row_of(Kind kind) {
  static const KindRow* const kKinds[] = {&kDenseRow,  &kFloat16Row, &kBFloat16Row,
                                          &kBlocksRow, &kTopKRow,    &kRandomKRow};
  return *kKinds[static_cast<size_t>(kind)];
}

// While it lives, this thread computes as IEEE 754 says: whether its caller flushes subnormals must not show
// in a payload.
class IeeeFloats {
 public:
#if defined(__SSE2__)
  IeeeFloats() : before_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
  ~IeeeFloats() { _mm_setcsr(before_); }

 private:
  uint32_t before_;
#else
  IeeeFloats() {}
  ~IeeeFloats() {}
#endif
 public:
  IeeeFloats(const IeeeFloats&) = delete;
  IeeeFloats& operator=(const IeeeFloats&) = delete;
};

}  // namespace

size_t kept(const Codec& codec, size_t count) {
  if (count == 0) return 0;
  const size_t k = (static_cast<uint64_t>(count) * codec.per_million + 500'000) / 1'000'000;
  return k == 0 ? 1 : k;
}

bool is_by_parts(const Codec& codec) {
  return codec.kind != Kind::TopK && codec.kind != Kind::RandomK && !codec.masks_zeros;
}

bool is_fixed_size(const Codec& codec) { return !codec.masks_zeros; }

size_t wire_bytes(const Codec& codec, size_t count) {
  WEFT_CHECK(count <= kMaxCount);
  return row_of(codec.kind).wire_bytes(codec, count);
}

size_t scratch_bytes(const Codec& codec, size_t count) {
  return row_of(codec.kind).scratch_bytes(codec, count) + Arena::padded<float>(count);
}

std::optional<size_t> encode(const Codec& codec, std::span<const float> x, const Draw& draw,
                             std::span<std::byte> out, Scratch& scratch) {
  WEFT_CHECK(out.size() >= wire_bytes(codec, x.size()));
  const KindRow& row = row_of(codec.kind);
  const IeeeFloats ieee;
  return row.encode(codec, x, draw, out, scratch.take(row.scratch_bytes(codec, x.size())));
}

Status decode(const Codec& codec, const Draw& draw, std::span<const std::byte> payload,
              std::span<float> out) {
  WEFT_CHECK(out.size() <= kMaxCount);
  const IeeeFloats ieee;
  return row_of(codec.kind).decode(codec, draw, payload, out);
}

std::optional<size_t> encode_at(const Codec& codec, std::span<const float> x,
                                std::span<const uint32_t> positions, const Draw& draw,
                                std::span<std::byte> out, Scratch& scratch) {
  WEFT_CHECK(codec.kind == Kind::TopK && positions.size() == kept(codec, x.size()));
  WEFT_CHECK(out.size() >= wire_bytes_at(codec, x.size()));
  const IeeeFloats ieee;
  return top_k_encode_at(codec, x, positions, draw, out,
                         scratch.take(row_of(codec.kind).scratch_bytes(codec, x.size())));
}

Status decode_at(const Codec& codec, std::span<const uint32_t> positions, const Draw& draw,
                 std::span<const std::byte> payload, std::span<float> out) {
  WEFT_CHECK(codec.kind == Kind::TopK && positions.size() == kept(codec, out.size()));
  const IeeeFloats ieee;
  return top_k_decode_at(codec, positions, draw, payload, out);
}

double relative_error(std::span<const float> x, std::span<const float> y) {
  WEFT_CHECK(x.size() == y.size());
  double sums[2] = {};
  loops().error_sums(x.data(), y.data(), static_cast<int64_t>(x.size()), sums);
  if (sums[0] == 0) return 0;
  return sums[1] == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(sums[0] / sums[1]);
}

double relative_error(const Codec& codec, std::span<const float> x, const Draw& draw,
                      std::span<const std::byte> payload, Scratch& scratch) {
  const auto y = Arena(scratch.take(Arena::padded<float>(x.size()))).take<float>(x.size());
  WEFT_CHECK(decode(codec, draw, payload, y));
  const IeeeFloats ieee;
  return relative_error(x, y);
}

bool are_below_infinity(std::span<const float> x) {
  return loops().all_below_infinity(x.data(), static_cast<int64_t>(x.size()));
}

Status check_length(std::span<const std::byte> payload, size_t wanted) {
  if (payload.size() == wanted) return {};
  return fail(ErrorCode::Corrupted, "a payload of " + std::to_string(payload.size()) + " bytes where " +
                                        std::to_string(wanted) + " were expected");
}

// The draw's fields are hashed to 128 bits, key and upper half of the counter; two draws meet by accident
// once in 2^128.
Stream stream_of(const Draw& draw, Purpose purpose) {
  const PhiloxBlock hash = philox(
      {static_cast<uint32_t>(draw.step), static_cast<uint32_t>(draw.step >> 32), draw.microbatch, draw.edge},
      {static_cast<uint32_t>(draw.seed), static_cast<uint32_t>(draw.seed >> 32)});
  const uint32_t tag = static_cast<uint32_t>(purpose) << 24 | (draw.backward ? 1u : 0u) << 16 | draw.replica;
  constexpr uint32_t kOfBlock = 8;  // of the stream's blocks, to each of the tensor's
  return {
      {hash[0], hash[1]}, tag, {hash[2], hash[3]}, purpose == Purpose::Blocks ? draw.first * kOfBlock : 0};
}

std::span<std::byte> Scratch::take(size_t bytes) {
  constexpr size_t kAlignment = 64;
  if (bytes > size_) {
    memory_.reset();  // first, so that both are never held
    memory_.reset(new std::byte[bytes + kAlignment]);
    size_ = bytes;
  }
  if (bytes == 0) return {};
  void* at = memory_.get();
  size_t space = size_ + kAlignment;
  return {static_cast<std::byte*>(std::align(kAlignment, bytes, at, space)), bytes};
}

}  // namespace weft::compress
