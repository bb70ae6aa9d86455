#include "proto/codec/codec.h"

#include <cstring>

#include "proto/codec/planning.h"
#include "proto/codec/scan.h"
#include "proto/codec/wire.h"

namespace weft::proto {
namespace {

std::vector<std::byte> serialise(const google::protobuf::MessageLite& message) {
  std::vector<std::byte> bytes(message.ByteSizeLong());
  WEFT_CHECK(message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size())));
  return bytes;
}

template <typename Wire>
Status parse(std::span<const std::byte> bytes, size_t size_max, Wire& message) {
  if (bytes.size() > size_max)
    return fail(ErrorCode::OutOfRange, std::to_string(bytes.size()) + " bytes; at most " +
                                           std::to_string(size_max) + " are allowed");
  WEFT_TRY_STATUS(scan(bytes, *Wire::descriptor()));
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(ErrorCode::Corrupted, "not a message of this protocol");
  return {};
}

template <typename T, typename Wire>
Result<Message> read(const Wire& from) {
  T message;
  WEFT_TRY_STATUS(get(from, message));
  return Message(std::move(message));
}

Result<Message> read(const wire::Envelope& envelope) {
  switch (envelope.message_case()) {
#define WEFT_CASE(Type, name)   \
  case wire::Envelope::k##Type: \
    return read<Type>(envelope.name());
    WEFT_MESSAGES(WEFT_CASE)
#undef WEFT_CASE
    case wire::Envelope::MESSAGE_NOT_SET:
      break;
  }
  if (!envelope.GetReflection()->GetUnknownFields(envelope).empty())
    return fail(ErrorCode::VersionMismatch,
                "a message that protocol " + std::to_string(kProtocolMajor) + "." +
                    std::to_string(kProtocolMinor) +
                    " does not have; install the same version of weft on both sides");
  return fail(ErrorCode::Corrupted, "an empty message");
}

#define WEFT_SLOT(Type, name)                                               \
  [[maybe_unused]] void put_into(const Type& message, wire::Envelope& to) { \
    put(message, *to.mutable_##name());                                     \
  }
WEFT_MESSAGES(WEFT_SLOT)
#undef WEFT_SLOT

}  // namespace

std::vector<std::byte> encode(const Message& message) {
  wire::Envelope envelope;
  std::visit([&](const auto& alternative) { put_into(alternative, envelope); }, message);
  return serialise(envelope);
}

namespace {
template <typename T>
std::vector<std::byte> encode_alternative(const T& message) {
  wire::Envelope envelope;
  put_into(message, envelope);
  return serialise(envelope);
}
}  // namespace

std::vector<std::byte> encode(const AssignStage& message) { return encode_alternative(message); }
std::vector<std::byte> encode(const SubmitJob& message) { return encode_alternative(message); }

EncodedBytes share(std::vector<std::byte> bytes) {
  const auto shared = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return {*shared, shared};
}

Result<Message> decode(std::span<const std::byte> bytes) {
  wire::Envelope envelope;
  if (const Status parsed = parse(bytes, kMessageSizeMax, envelope); !parsed)
    return fail(parsed.error().within("message"));
  return read(envelope);
}

std::vector<std::byte> encode_graph(const dag::Graph& graph) {
  wire::Graph message;
  put(graph, message);
  return serialise(message);
}

Result<dag::Graph> decode_graph(std::span<const std::byte> bytes) {
  wire::Graph message;
  if (const Status parsed = parse(bytes, kGraphSizeMax, message); !parsed)
    return fail(parsed.error().within("graph"));
  dag::Graph graph;
  WEFT_TRY_STATUS(get(message, graph));
  return graph;
}

namespace {

template <typename Wire, typename T>
std::vector<std::byte> encode_by_itself(const T& value) {
  Wire message;
  put(value, message);
  return serialise(message);
}
template <typename Wire, typename T>
Result<T> decode_by_itself(std::span<const std::byte> bytes, size_t size_max, std::string_view what) {
  Wire message;
  if (const Status parsed = parse(bytes, size_max, message); !parsed)
    return fail(parsed.error().within(what));
  T value;
  WEFT_TRY_STATUS(get(message, value));
  return value;
}

}  // namespace

std::vector<std::byte> encode_question(const PlanQuestion& question) {
  return encode_by_itself<wire::PlanQuestion>(question);
}
Result<PlanQuestion> decode_question(std::span<const std::byte> bytes) {
  return decode_by_itself<wire::PlanQuestion, PlanQuestion>(bytes, kPlanQuestionSizeMax, "question");
}
std::vector<std::byte> encode_answer(const PlanAnswer& answer) {
  return encode_by_itself<wire::PlanAnswer>(answer);
}
Result<PlanAnswer> decode_answer(std::span<const std::byte> bytes) {
  return decode_by_itself<wire::PlanAnswer, PlanAnswer>(bytes, kMessageSizeMax, "answer");
}

std::vector<std::byte> encode_chunk_head(uint64_t request) {
  std::vector<std::byte> head(sizeof(request));
  for (size_t i = 0; i < head.size(); ++i) head[i] = static_cast<std::byte>(request >> (8 * i));
  return head;
}

Result<ChunkFrame> decode_chunk(std::span<const std::byte> payload) {
  ChunkFrame chunk;
  if (payload.size() < sizeof(chunk.request))
    return fail(ErrorCode::Corrupted, "chunk: shorter than its head");
  chunk.bytes = payload.subspan(sizeof(chunk.request));
  if (chunk.bytes.size() > kChunkSizeMax)
    return fail(ErrorCode::OutOfRange, "chunk: " + std::to_string(chunk.bytes.size()) + " bytes; at most " +
                                           std::to_string(kChunkSizeMax) + " are allowed");
  for (size_t i = 0; i < sizeof(chunk.request); ++i)
    chunk.request |= static_cast<uint64_t>(payload[i]) << (8 * i);
  return chunk;
}

}  // namespace weft::proto
