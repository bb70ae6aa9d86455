// TopK: the k largest magnitudes, of equals those of lowest index.
//
// Wire: positions (positions.h), values (values.h), and with a floor the remainder, the tensor with zeros at
// those positions, as Blocks (blocks.cc). Decoded, the values take their places over the floor. Without a
// floor what is not sent is zero: biased, which error feedback (its caller's) makes up for; with one, no bias
// but what F16 rounds off.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "compress/blocks.h"
#include "compress/positions.h"
#include "compress/select.h"
#include "compress/values.h"

namespace weft::compress {
namespace {

constexpr size_t kGroup = static_cast<size_t>(kBlock);

// Lengths of the parts.
struct Parts {
  PositionFormat positions;
  size_t values = 0, floor = 0;
  size_t at() const { return values + floor; }  // without positions
  size_t all() const { return positions.bytes() + at(); }
};
Parts parts_of(const Codec& codec, size_t count) {
  const size_t k = kept(codec, count);
  return {position_format(count, k), values_bytes(codec.values, k),
          codec.floor_bits == 0 ? 0 : blocks_bytes(codec.floor_bits, count)};
}

size_t top_k_bytes(const Codec& codec, size_t count) { return parts_of(codec, count).all(); }

size_t floor_scratch(const Codec& codec, size_t count) {
  return codec.floor_bits == 0 ? 0 : Arena::padded<float>(count);
}
size_t scratch(const Codec& codec, size_t count) {
  if (count == 0) return 0;
  return select_scratch_bytes(count, kept(codec, count)) + floor_scratch(codec, count);
}

// REQUIRES: x is finite.
void write_floor(const Codec& codec, std::span<const float> x, std::span<const uint32_t> positions,
                 const Draw& draw, std::span<std::byte> out, Arena& scratch) {
  const auto rest = scratch.take<float>(x.size());
  std::memcpy(rest.data(), x.data(), x.size_bytes());
  for (const uint32_t p : positions) rest[p] = 0;
  WEFT_CHECK(encode_blocks(codec.floor_bits, rest, draw, out));
}

bool is_finite(std::span<const float> x) {
  return loops().all_finite(x.data(), static_cast<int64_t>(x.size()));
}

std::optional<size_t> encode_top_k(const Codec& codec, std::span<const float> x, const Draw& draw,
                                   std::span<std::byte> out, std::span<std::byte> memory) {
  if (x.empty()) return 0;
  const Parts parts = parts_of(codec, x.size());
  Arena scratch(memory);
  const Selected selected = select_largest(x, parts.positions.k, scratch);
  const std::span<const float> values = {reinterpret_cast<const float*>(selected.bits.data()),
                                         parts.positions.k};
  if (!is_finite(values)) return std::nullopt;  // what is not finite is selected first
  write_positions(parts.positions, selected.index, out.first(parts.positions.bytes()));
  write_values(codec.values, values, draw, out.subspan(parts.positions.bytes(), parts.values));
  if (parts.floor != 0)
    write_floor(codec, x, selected.index, draw, out.subspan(parts.all() - parts.floor, parts.floor), scratch);
  return parts.all();
}

// Values and floor; `next` fills in the positions that come next, or says that they are corrupted.
template <typename Next>
Status decode_parts(const Codec& codec, const Parts& parts, const Draw& draw,
                    std::span<const std::byte> payload, Next next, std::span<float> out) {
  if (parts.floor == 0)
    std::fill(out.begin(), out.end(), 0.0f);
  else
    WEFT_TRY_STATUS(decode_blocks(codec.floor_bits, draw, payload.last(parts.floor), out));
  uint32_t positions[kGroup];
  float values[kGroup];
  for (size_t at = 0; at < parts.positions.k; at += kGroup) {
    const size_t count = std::min(kGroup, parts.positions.k - at);
    WEFT_TRY_STATUS(next(std::span(positions).first(count)));
    WEFT_TRY_STATUS(
        read_values(codec.values, payload.first(parts.values), at, std::span(values).first(count)));
    for (size_t i = 0; i < count; ++i) out[positions[i]] = values[i];
  }
  return {};
}

tl::unexpected<Error> bad_positions() {
  return fail(ErrorCode::Corrupted, "positions that are out of order or out of range, or too few");
}
Status check_end(const PositionReader& reader) {
  if (reader.at_end()) return {};
  return fail(ErrorCode::Corrupted, "more positions than there are values, or bits beyond their end");
}

Status decode_top_k(const Codec& codec, const Draw& draw, std::span<const std::byte> payload,
                    std::span<float> out) {
  const Parts parts = parts_of(codec, out.size());
  WEFT_TRY_STATUS(check_length(payload, parts.all()));
  PositionReader reader(parts.positions, payload.first(parts.positions.bytes()));
  WEFT_TRY_STATUS(decode_parts(
      codec, parts, draw, payload.subspan(parts.positions.bytes()),
      [&](std::span<uint32_t> positions) -> Status {
        if (reader.next(positions)) return {};
        return bad_positions();
      },
      out));
  return check_end(reader);
}

}  // namespace

const KindRow kTopKRow = {top_k_bytes, scratch, encode_top_k, decode_top_k};

Status positions(const Codec& codec, size_t count, std::span<const std::byte> payload,
                 std::span<uint32_t> positions) {
  WEFT_CHECK(codec.kind == Kind::TopK && positions.size() == kept(codec, count));
  const Parts parts = parts_of(codec, count);
  WEFT_TRY_STATUS(check_length(payload, parts.all()));
  PositionReader reader(parts.positions, payload.first(parts.positions.bytes()));
  if (!reader.next(positions)) return bad_positions();
  return check_end(reader);
}

size_t wire_bytes_at(const Codec& codec, size_t count) {
  WEFT_CHECK(codec.kind == Kind::TopK);
  return parts_of(codec, count).at();
}

std::optional<size_t> top_k_encode_at(const Codec& codec, std::span<const float> x,
                                      std::span<const uint32_t> positions, const Draw& draw,
                                      std::span<std::byte> out, std::span<std::byte> memory) {
  if (!is_finite(x)) return std::nullopt;
  const Parts parts = parts_of(codec, x.size());
  Arena scratch(memory);
  const auto values = scratch.take<float>(positions.size());
  for (size_t i = 0; i < positions.size(); ++i) values[i] = x[positions[i]];
  write_values(codec.values, values, draw, out.first(parts.values));
  if (parts.floor != 0)
    write_floor(codec, x, positions, draw, out.subspan(parts.values, parts.floor), scratch);
  return parts.at();
}

Status top_k_decode_at(const Codec& codec, std::span<const uint32_t> positions, const Draw& draw,
                       std::span<const std::byte> payload, std::span<float> out) {
  const Parts parts = parts_of(codec, out.size());
  WEFT_TRY_STATUS(check_length(payload, parts.at()));
  return decode_parts(
      codec, parts, draw, payload,
      [&, at = size_t{0}](std::span<uint32_t> to) mutable -> Status {
        std::copy_n(&positions[at], to.size(), to.data());
        at += to.size();
        return {};
      },
      out);
}

}  // namespace weft::compress
