// Blocks: each 128 numbers as a scale and 128 codes of 8, 6, 5, 4 or 3 bits.
//
// A block x is rotated, C = H S x / 128, where H is the Hadamard matrix (entries +-1, rows in natural order)
// and S changes signs in a fixed pattern (loops/blocks.cc): an outlier, which would set the scale for all, is
// spread over all. C[i] / w, with w = max |C| / (2^bits - 1), lies in +-(2^bits - 1) and is rounded to an odd
// number after 2 d[i] was added, d uniform in (-1/2, 1/2) and drawn by both ends alike; the receiver takes 2
// d[i] off again. So the error is uniform within a step of 2 w and independent of x: its mean is zero, its
// square (2 w)^2 / 12, half of what it is where a number is rounded up or down by chance. Decoded is S H of
// that. (Subtractive dither: Roberts, "Picture coding using pseudo-random noise", 1962; Schuchman, 1964.
// Rotation before rounding: Suresh et al., "Distributed mean estimation with limited communication", ICML
// 2017. We use a fixed pattern of signs where they draw it, and have no level at zero, which after a rotation
// is nothing special: all 2^bits codes are used.)
//
// Wire: for each block the scale, a bfloat16 rounded up, then bits * 128 / 8 bytes of codes. The last block,
// padded with zeros to a power of two p of at least 8, has bits * p / 8. A bfloat for it has the range of the
// tensor and, at the 8 bits that it has, adds 0.3 % to the error; a float32 would add 3 % to the bytes of
// int4.
//
// Relative error of int4 (bench/codecs.cc): normal numbers 0.110, Student's t of 3 degrees 0.103, after a
// Relu 0.106. Others were compared by chance rounding, where these are 0.155, 0.146, 0.149: without rotation
// 0.155, 0.344, 0.226; rotated without S 0.155, 0.146, 0.350, for a mean then lies on one coefficient; with a
// level at zero (15 codes) 0.166, 0.155, 0.160. Blocks of 32, 64, 256: 0.128, 0.142, 0.168 on normal numbers,
// which at the bytes of 128 would be 0.167, 0.155, 0.161.
//
// Magnitudes below 2^-103 are lost: the scale is not below 2^-110.
//
// With masks_zeros: ceil(count / 8) bytes of bits, lowest first, one for each number that is not zero, then
// blocks of those numbers alone, one after the other.
#include <algorithm>
#include <bit>
#include <cstring>

#include "compress/blocks.h"

namespace weft::compress {
namespace {

constexpr size_t kSlack = 16;  // elements that the loops may write beyond the last

int64_t length(auto span) { return static_cast<int64_t>(span.size()); }
size_t mask_bytes(size_t count) { return (count + 7) / 8; }

size_t masked_or_plain_bytes(const Codec& codec, size_t count) {
  return (codec.masks_zeros ? mask_bytes(count) : 0) + blocks_bytes(codec.bits, count);
}

size_t scratch(const Codec& codec, size_t count) {
  return codec.masks_zeros ? Arena::padded<float>(count + kSlack) : 0;
}

std::optional<size_t> encode_masked(const Codec& codec, std::span<const float> x, const Draw& draw,
                                    std::span<std::byte> out, std::span<std::byte> memory) {
  const auto nonzero = Arena(memory).take<float>(x.size() + kSlack);
  const auto found =
      static_cast<size_t>(loops().gather_nonzero(x.data(), length(x), octets(out), nonzero.data()));
  const size_t mask = mask_bytes(x.size());
  const auto bytes = encode_blocks(codec.bits, nonzero.first(found), draw, out.subspan(mask));
  return bytes ? std::optional(mask + *bytes) : std::nullopt;
}

std::optional<size_t> encode_any(const Codec& codec, std::span<const float> x, const Draw& draw,
                                 std::span<std::byte> out, std::span<std::byte> memory) {
  if (codec.masks_zeros) return encode_masked(codec, x, draw, out, memory);
  return encode_blocks(codec.bits, x, draw, out);
}

size_t ones(std::span<const std::byte> mask) {
  size_t sum = 0;
  for (; !mask.empty(); mask = mask.subspan(std::min<size_t>(8, mask.size()))) {
    uint64_t word = 0;
    std::memcpy(&word, mask.data(), std::min<size_t>(8, mask.size()));
    sum += static_cast<size_t>(std::popcount(word));
  }
  return sum;
}

Status decode_masked(const Codec& codec, const Draw& draw, std::span<const std::byte> payload,
                     std::span<float> out) {
  const size_t count = out.size(), bytes = mask_bytes(count);
  if (payload.size() < bytes) return check_length(payload, bytes);
  const auto mask = payload.first(bytes);
  if (count % 8 != 0 && std::to_integer<unsigned>(mask.back()) >> (count % 8) != 0)
    return fail(ErrorCode::Corrupted, "the mask of zeros goes on beyond the last number");
  const size_t nonzero = ones(mask);
  WEFT_TRY_STATUS(decode_blocks(codec.bits, draw, payload.subspan(bytes), out.last(nonzero)));
  loops().scatter_nonzero(octets(mask), length(out), static_cast<int64_t>(nonzero), out.data());
  return {};
}

Status decode_any(const Codec& codec, const Draw& draw, std::span<const std::byte> payload,
                  std::span<float> out) {
  if (codec.masks_zeros) return decode_masked(codec, draw, payload, out);
  return decode_blocks(codec.bits, draw, payload, out);
}

}  // namespace

size_t blocks_bytes(int bits, size_t count) {
  const size_t whole = count / kBlock, rest = count % kBlock, each = static_cast<size_t>(bits);
  const size_t tail = rest == 0 ? 0 : 2 + each * std::max<size_t>(8, std::bit_ceil(rest)) / 8;
  return whole * (2 + each * kBlock / 8) + tail;
}

std::optional<size_t> encode_blocks(int bits, std::span<const float> x, const Draw& draw,
                                    std::span<std::byte> out) {
  const Stream stream = stream_of(draw, Purpose::Blocks);
  if (!loops().encode_blocks(bits, x.data(), length(x), stream, octets(out))) return std::nullopt;
  return blocks_bytes(bits, x.size());
}

Status decode_blocks(int bits, const Draw& draw, std::span<const std::byte> payload, std::span<float> out) {
  WEFT_TRY_STATUS(check_length(payload, blocks_bytes(bits, out.size())));
  const Stream stream = stream_of(draw, Purpose::Blocks);
  if (loops().decode_blocks(bits, octets(payload), length(out), stream, out.data())) return {};
  return fail(ErrorCode::Corrupted, "the scale of a block is negative or not finite");
}

const KindRow kBlocksRow = {masked_or_plain_bytes, scratch, encode_any, decode_any};

}  // namespace weft::compress
