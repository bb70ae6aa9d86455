// The header of a tensor frame, all numbers little-endian:
//    0  magic "WTEN"        16  plan version u32     36  edge u32
//    4  format u8 = 1       20  microbatch u32       40  bytes of the tensor u64
//    5  dtype u8            24  step u64             48  dims i64 each
//    6  program u8          32  replica u16
//    7  direction u8        34  rank u8, 0
//    8  run u64
// A piece's head is number u64, offset u32, size u32, and then the header.
// Format 2 is of a payload that is not the tensor's raw bytes. Before the dims it has the codec:
//   48  kind u8             51  values u8            56  per million u32
//   49  bits u8             52  floor bits u8        60  0 u32
//   50  masks zeros u8      53  0 u8, 0 u16
#include <cstring>

#include "proto/codec/bounds.h"
#include "proto/codec/codec.h"

namespace weft::proto {
namespace {

constexpr size_t kFixedSize = 48;
constexpr size_t kPieceFixedSize = 16;
static_assert(kPieceHeadSizeMax == kPieceFixedSize + kTensorHeaderSizeMax);
constexpr uint32_t kMagic = 0x4E455457;      // "WTEN"
constexpr uint8_t kDense = 1, kEncoded = 2;  // formats
constexpr size_t kCodecSize = 16;
static_assert(kTensorHeaderSizeMax == kFixedSize + kCodecSize + 8 * kDimsMax);

template <typename T>
void store(std::byte* at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i)
    at[i] = static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i));
}
template <typename T>
T load(const std::byte* at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= static_cast<uint64_t>(at[i]) << (8 * i);
  return static_cast<T>(value);
}

tl::unexpected<Error> refuse(ErrorCode code, const std::string& why) { return fail(code, "tensor: " + why); }

void store_codec(std::byte* at, const compress::Codec& codec) {
  store(at, static_cast<uint8_t>(codec.kind));
  store(at + 1, codec.bits);
  store(at + 2, static_cast<uint8_t>(codec.masks_zeros));
  store(at + 3, static_cast<uint8_t>(codec.values));
  store(at + 4, codec.floor_bits);
  store(at + 8, codec.per_million);
}
Status load_codec(const std::byte* at, compress::Codec& codec) {
  const auto masks = load<uint8_t>(at + 2);
  if (masks > 1 || load<uint8_t>(at + 5) != 0 || load<uint16_t>(at + 6) != 0 || load<uint32_t>(at + 12) != 0)
    return refuse(ErrorCode::OutOfRange, "an unused field of its codec is not zero");
  codec = {.kind = static_cast<compress::Kind>(load<uint8_t>(at)),
           .bits = load<uint8_t>(at + 1),
           .masks_zeros = masks == 1,
           .values = static_cast<compress::Values>(load<uint8_t>(at + 3)),
           .floor_bits = load<uint8_t>(at + 4),
           .per_million = load<uint32_t>(at + 8)};
  if (const Status known = compress::check(codec); !known) return fail(known.error().within("tensor"));
  if (codec.kind == compress::Kind::Dense) return refuse(ErrorCode::OutOfRange, "format 2 of a dense tensor");
  return {};
}

// What the frame holds behind the header is as long as what the header says takes.
Status check_held(const TensorHeader& header, size_t held) {
  const auto size = static_cast<uint64_t>(header.spec.bytes().value);
  const auto differs = [&](const std::string& takes) {
    return refuse(ErrorCode::Corrupted, dag::to_string(header.spec) + " has " + takes + ", its frame holds " +
                                            std::to_string(held));
  };
  if (header.codec.kind == compress::Kind::Dense)
    return held == size ? Status{} : differs(std::to_string(size) + " bytes");
  if (header.spec.dtype != dag::DType::F32)
    return refuse(ErrorCode::OutOfRange, "a codec of " + dag::to_string(header.spec));
  const size_t count = size / sizeof(float);
  if (count > compress::kMaxCount) return refuse(ErrorCode::OutOfRange, "too many elements for a codec");
  const size_t takes = compress::wire_bytes(header.codec, count);
  if (compress::is_fixed_size(header.codec) ? held == takes : held <= takes) return {};
  return differs((compress::is_fixed_size(header.codec) ? "" : "at most ") + std::to_string(takes) +
                 " bytes as " + compress::name(header.codec));
}

}  // namespace

std::vector<std::byte> encode_header(const TensorHeader& header) {
  const dag::Shape& dims = header.spec.shape;
  WEFT_CHECK(dims.size() <= kDimsMax);
  const bool is_dense = header.codec.kind == compress::Kind::Dense;
  const size_t before_dims = kFixedSize + (is_dense ? 0 : kCodecSize);
  std::vector<std::byte> bytes(before_dims + 8 * dims.size());
  std::byte* at = bytes.data();
  store(at, kMagic);
  store(at + 4, is_dense ? kDense : kEncoded);
  store(at + 5, static_cast<uint8_t>(header.spec.dtype));
  store(at + 6, static_cast<uint8_t>(header.program));
  store(at + 7, static_cast<uint8_t>(header.direction));
  store(at + 8, header.run);
  store(at + 16, header.plan_version);
  store(at + 20, header.microbatch);
  store(at + 24, header.step);
  store(at + 32, header.replica);
  store(at + 34, static_cast<uint8_t>(dims.size()));
  store(at + 36, header.edge);
  store(at + 40, static_cast<uint64_t>(header.spec.bytes().value));
  if (!is_dense) store_codec(at + kFixedSize, header.codec);
  for (size_t i = 0; i < dims.size(); ++i) store(at + before_dims + 8 * i, dims[i]);
  return bytes;
}

namespace {

Result<TensorHead> parse_header(std::span<const std::byte> first) {
  if (first.size() < kFixedSize) return refuse(ErrorCode::Corrupted, "shorter than its header");
  const std::byte* at = first.data();
  if (load<uint32_t>(at) != kMagic) return refuse(ErrorCode::Corrupted, "not a tensor header");
  const auto format = load<uint8_t>(at + 4);
  if (format != kDense && format != kEncoded)
    return refuse(ErrorCode::VersionMismatch,
                  "header format " + std::to_string(format) + ", this version reads 1 and 2");
  const auto dtype = load<uint8_t>(at + 5), program = load<uint8_t>(at + 6),
             direction = load<uint8_t>(at + 7);
  const auto rank = load<uint8_t>(at + 34);
  if (dtype > static_cast<uint8_t>(dag::DType::Bool) || program > static_cast<uint8_t>(ProgramKind::Sum) ||
      direction > static_cast<uint8_t>(Direction::Backward) || load<uint8_t>(at + 35) != 0)
    return refuse(ErrorCode::OutOfRange, "an enumerator of its header is unknown");
  if (rank > kDimsMax)
    return refuse(ErrorCode::OutOfRange, std::to_string(rank) + " dims; at most 16 are allowed");
  const size_t before_dims = kFixedSize + (format == kEncoded ? kCodecSize : 0);
  const size_t header_size = before_dims + 8 * size_t{rank};
  if (first.size() < header_size) return refuse(ErrorCode::Corrupted, "shorter than its header");

  TensorHead head;
  head.size = header_size;
  TensorHeader& header = head.header;
  header.run = load<uint64_t>(at + 8);
  header.plan_version = load<uint32_t>(at + 16);
  header.microbatch = load<uint32_t>(at + 20);
  header.step = load<uint64_t>(at + 24);
  header.replica = load<uint16_t>(at + 32);
  header.edge = load<uint32_t>(at + 36);
  header.program = static_cast<ProgramKind>(program);
  header.direction = static_cast<Direction>(direction);
  header.spec.dtype = static_cast<dag::DType>(dtype);
  if (format == kEncoded) WEFT_TRY_STATUS(load_codec(at + kFixedSize, header.codec));
  for (size_t i = 0; i < rank; ++i) header.spec.shape.push_back(load<int64_t>(at + before_dims + 8 * i));
  if (const auto count = dag::checked_element_count(header.spec.shape); !count)
    return fail(count.error().within("tensor"));
  const auto size = static_cast<uint64_t>(header.spec.bytes().value);
  if (size > kTensorSizeMax)
    return refuse(ErrorCode::OutOfRange, std::to_string(size) + " bytes; at most " +
                                             std::to_string(kTensorSizeMax) + " are allowed");
  if (size != load<uint64_t>(at + 40))
    return refuse(ErrorCode::Corrupted, dag::to_string(header.spec) + " has " + std::to_string(size) +
                                            " bytes, its header says " +
                                            std::to_string(load<uint64_t>(at + 40)));
  return head;
}

}  // namespace

Result<TensorHead> decode_tensor_head(std::span<const std::byte> first, size_t payload_size) {
  WEFT_TRY(TensorHead head, parse_header(first));
  WEFT_TRY_STATUS(check_held(head.header, payload_size - head.size));
  return head;
}

Result<TensorFrame> decode_tensor(std::span<const std::byte> payload) {
  WEFT_TRY(TensorHead head, decode_tensor_head(payload, payload.size()));
  return TensorFrame{std::move(head.header), payload.subspan(head.size)};
}

// ---- pieces

std::vector<std::byte> encode_piece_head(uint64_t number, uint32_t offset, uint32_t size,
                                         std::span<const std::byte> header) {
  WEFT_CHECK(offset % kPieceSize == 0 && (offset < size || (offset == 0 && size == 0)));
  std::vector<std::byte> bytes(kPieceFixedSize + header.size());
  store(bytes.data(), number);
  store(bytes.data() + 8, offset);
  store(bytes.data() + 12, size);
  std::memcpy(bytes.data() + kPieceFixedSize, header.data(), header.size());
  return bytes;
}

Result<PieceStart> decode_piece_head(std::span<const std::byte> first, size_t payload_size) {
  if (first.size() < kPieceFixedSize) return refuse(ErrorCode::Corrupted, "a piece shorter than its head");
  PieceStart start;
  PieceHead& head = start.head;
  head.number = load<uint64_t>(first.data());
  head.offset = load<uint32_t>(first.data() + 8);
  head.size = load<uint32_t>(first.data() + 12);
  WEFT_TRY(TensorHead tensor, parse_header(first.subspan(kPieceFixedSize)));
  WEFT_TRY_STATUS(check_held(tensor.header, head.size));
  head.header = std::move(tensor.header);
  start.head_size = kPieceFixedSize + tensor.size;
  const bool lies_within = head.offset < head.size || (head.offset == 0 && head.size == 0);
  if (head.offset % kPieceSize != 0 || !lies_within)
    return refuse(ErrorCode::OutOfRange, "no piece of " + std::to_string(head.size) + " bytes begins at " +
                                             std::to_string(head.offset));
  if (payload_size != start.head_size + head.piece_size())
    return refuse(ErrorCode::Corrupted, "a piece of " + std::to_string(head.piece_size()) +
                                            " bytes in a frame of " + std::to_string(payload_size));
  return start;
}

}  // namespace weft::proto
