// Messages to frames and back. Decoding never trusts: lengths are bounded before memory is taken, enumerators
// are checked, graphs are rebuilt op by op through the op table's shape rules, and the first thing that is
// wrong is named. Errors: Corrupted (not a message of this protocol), OutOfRange (a bound), VersionMismatch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "base/result.h"
#include "dag/op_table.h"
#include "proto/encoded.h"
#include "proto/messages.h"

namespace weft::proto {

// Kinds of frames on a connection (net/frame.h).
enum class FrameKind : uint8_t {
  Message = 1,  // one encoded Message
  Tensor = 2,   // encoded TensorHeader, raw bytes
  Chunk = 3,    // request u64, bytes of a blob in order, at most kChunkSizeMax
  Probe = 4,    // bytes that mean nothing, at most kProbeSizeMax: they are counted
  Piece = 5,    // of a tensor: encoded PieceHead, at most kPieceSize raw bytes
};
inline constexpr size_t kMessageSizeMax = 16 << 20;  // bytes of an encoded message
inline constexpr size_t kHelloSizeMax = 16 << 10;    // before the other side is known
inline constexpr size_t kChunkSizeMax = 1 << 20;
inline constexpr size_t kProbeSizeMax = 256 << 10;
inline constexpr size_t kPieceSize = 64 << 10;
inline constexpr size_t kTensorSizeMax = size_t{1} << 30;  // bytes of one tensor in a frame

// Texts for people that are too long are cut. What else is beyond its bound is encoded, and refused by the
// reader: whoever sends compares the size with kMessageSizeMax. REQUIRES: graphs as GraphBuilder makes them.
std::vector<std::byte> encode(const Message& message);
std::vector<std::byte> encode(const AssignStage& message);
std::vector<std::byte> encode(const SubmitJob& message);
// Shared, to be kept.
EncodedBytes share(std::vector<std::byte> bytes);
// Of the message; encoded now where they are not at hand. REQUIRES: there is a message.
template <typename T>
EncodedBytes bytes_of(const Encoded<T>& message) {
  return message.bytes() ? message.bytes() : share(encode(*message));
}
// With its bytes. REQUIRES: there is a message.
template <typename T>
Encoded<T> with_bytes(const Encoded<T>& message) {
  const std::shared_ptr<const T>& shared = message;
  return {shared, bytes_of(message)};
}
// Takes at most some 200 MiB of memory on the way, for a message of kMessageSizeMax. A Hello or HelloAck of
// another major version comes with its version and software only.
Result<Message> decode(std::span<const std::byte> bytes);

// A graph by itself: as in AssignStage, at most 80 MiB. What is decoded is equal to what was encoded, in
// every op, name, layout, group and origin: executors compute the same bits.
std::vector<std::byte> encode_graph(const dag::Graph& graph);
Result<dag::Graph> decode_graph(std::span<const std::byte> bytes);

// The header is at most kTensorHeaderSizeMax bytes: fixed fields, the codec where there is one, the dims.
// REQUIRES of encode_header: at most 16 dims, which is what a model may have, and a codec that is one.
inline constexpr size_t kTensorHeaderSizeMax = 48 + 16 + 16 * 8;
std::vector<std::byte> encode_header(const TensorHeader& header);
struct TensorFrame {
  TensorHeader header;
  std::span<const std::byte> bytes;  // into the frame: header.spec.bytes() of them, or a payload of the codec
};
Result<TensorFrame> decode_tensor(std::span<const std::byte> payload);
// Of a frame that has begun: `first` are all bytes of its payload, or at least the first
// kTensorHeaderSizeMax.
struct TensorHead {
  TensorHeader header;
  size_t size = 0;  // of the header; the payload is what follows, as long as spec and codec say
};
Result<TensorHead> decode_tensor_head(std::span<const std::byte> first, size_t payload_size);

// What stands before a piece of a tensor on a link. Pieces lie on a grid: each but the last has kPieceSize
// bytes, so that which of them have come is a bit each, and none overlaps another.
struct PieceHead {
  uint64_t number = 0;  // of the tensor on its link, in the order in which they were begun
  uint32_t offset = 0;  // of the piece in the tensor's payload: a multiple of kPieceSize
  uint32_t size = 0;    // bytes of the whole payload
  TensorHeader header{};
  // What the piece holds.
  size_t piece_size() const { return std::min<size_t>(kPieceSize, size - offset); }
};
inline constexpr size_t kPieceHeadSizeMax = 16 + kTensorHeaderSizeMax;
// `header`: as encode_header made it. REQUIRES: an offset of the grid, below `size` or both 0.
std::vector<std::byte> encode_piece_head(uint64_t number, uint32_t offset, uint32_t size,
                                         std::span<const std::byte> header);
struct PieceStart {
  PieceHead head;
  size_t head_size = 0;  // encoded; the piece's bytes are what follows
};
// As decode_tensor_head: of a frame that has begun. What it says of header and size agrees, the piece is one
// of the grid, and the payload holds just its bytes.
Result<PieceStart> decode_piece_head(std::span<const std::byte> first, size_t payload_size);

std::vector<std::byte> encode_chunk_head(uint64_t request);
struct ChunkFrame {
  uint64_t request = 0;
  std::span<const std::byte> bytes;
};
Result<ChunkFrame> decode_chunk(std::span<const std::byte> payload);

}  // namespace weft::proto
