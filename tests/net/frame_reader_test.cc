// Frames out of bytes that come in pieces.
#include "net/frame_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <string>

#include "base/rng.h"
#include "net/tls.h"

namespace weft::net {
namespace {

constexpr size_t kLimit = 1 << 20;

struct Sent {
  uint8_t kind = 0;
  std::vector<std::byte> payload;
};

std::vector<std::byte> bytes_of(const std::vector<Sent>& frames) {
  std::vector<std::byte> bytes;
  for (const Sent& frame : frames) {
    for (size_t i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(frame.payload.size() >> (8 * i)));
    bytes.push_back(std::byte{frame.kind});
    bytes.insert(bytes.end(), frame.payload.begin(), frame.payload.end());
  }
  return bytes;
}

std::vector<std::byte> drawn(Rng& rng, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& each : bytes) each = static_cast<std::byte>(rng.below(256));
  return bytes;
}

using Place = std::function<PayloadPlace(uint8_t kind, size_t size, std::span<const std::byte> head)>;

// Until there is nothing more to receive. `place`: nothing where no payload has a place of its own.
Result<std::vector<InFrame>> read(FrameReader& reader, std::span<const std::byte> bytes,
                                  const std::function<size_t()>& piece, const Place& place) {
  std::vector<InFrame> frames;
  const auto begin = [&]() -> Status {
    PayloadPlace at = place ? place(reader.kind(), reader.size(), reader.head()) : PayloadPlace{};
    return reader.begin_payload(std::move(at), FrameReader::kPayloadAtOnce);
  };
  while (true) {
    switch (reader.next()) {
      case FrameReader::Next::BeginFrame:
        WEFT_TRY_STATUS(reader.begin_frame(kLimit));
        if (!place) WEFT_TRY_STATUS(begin());
        break;
      case FrameReader::Next::BeginPayload:
        WEFT_TRY_STATUS(begin());
        break;
      case FrameReader::Next::TakeHeld:
        WEFT_TRY_STATUS(reader.take_held());
        break;
      case FrameReader::Next::Deliver:
        frames.push_back(reader.take());
        break;
      case FrameReader::Next::Receive: {
        if (bytes.empty()) return frames;
        WEFT_TRY(const auto room, reader.room());
        EXPECT_FALSE(room.empty());
        const size_t size = std::min({bytes.size(), room.size(), piece()});
        std::memcpy(room.data(), bytes.data(), size);
        bytes = bytes.subspan(size);
        reader.received(size);
      }
    }
  }
}

std::vector<std::byte> payload_of(const InFrame& frame) {
  const auto head = frame.payload.span();
  std::vector<std::byte> all(head.begin(), head.end());
  if (frame.body) all.insert(all.end(), frame.body.get(), frame.body.get() + frame.body_size);
  return all;
}

void expect_equal(const std::vector<InFrame>& frames, const std::vector<Sent>& sent) {
  ASSERT_EQ(frames.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(frames[i].kind, sent[i].kind) << i;
    EXPECT_TRUE(payload_of(frames[i]) == sent[i].payload) << i;
  }
}

// Headers, heads and payloads end anywhere in a piece.
void read_in_pieces(uint64_t seed, bool places) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  std::vector<Sent> sent;
  for (int i = 0; i < 60; ++i) {
    const size_t size = rng.below(8) == 0 ? rng.below(3 * kTlsRecordSize) : rng.below(2 * kFrameHeadSize);
    sent.push_back({static_cast<uint8_t>(rng.below(256)), drawn(rng, size)});
  }
  const size_t piece_max = rng.below(2) == 0 ? 40 : kTlsRecordSize;
  const Place place = [&](uint8_t, size_t size, std::span<const std::byte> head) -> PayloadPlace {
    EXPECT_EQ(head.size(), std::min(size, kFrameHeadSize));
    if (rng.below(2) == 0) return {};
    const size_t head_size = rng.below(head.size() + 1);
    return {head_size, std::make_shared<std::byte[]>(size - head_size)};
  };
  FrameReader reader;
  const auto frames = read(
      reader, bytes_of(sent), [&] { return 1 + rng.below(piece_max); }, places ? place : Place());
  ASSERT_TRUE(frames) << frames.error().message;
  expect_equal(*frames, sent);
}

TEST(FrameReader, FramesComeInAnyPieces) {
  for (uint64_t seed = 0; seed < 20; ++seed) read_in_pieces(seed, /*places=*/false);
}

TEST(FrameReader, PayloadsGoWhereTheyArePlaced) {
  for (uint64_t seed = 0; seed < 20; ++seed) read_in_pieces(seed, /*places=*/true);
}

TEST(FrameReader, AFrameOfMoreThanTheLimitIsRefused) {
  FrameReader reader;
  const std::vector<std::byte> header{std::byte{1}, std::byte{0}, std::byte{0x10}, std::byte{0},
                                      std::byte{9}};
  const auto frames = read(
      reader, header, [] { return size_t{100}; }, nullptr);
  ASSERT_FALSE(frames);
  EXPECT_EQ(frames.error().code, ErrorCode::ResourceExhausted);
  EXPECT_EQ(frames.error().message, "a frame of 1048577 bytes was announced, the limit is 1048576");
}

// Who announces much and sends little does not get the memory for it.
TEST(FrameReader, MemoryIsTakenAsBytesCome) {
  FrameReader reader;
  const std::vector<std::byte> header{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{0x80},
                                      std::byte{9}};
  std::memcpy(reader.room()->data(), header.data(), header.size());
  reader.received(header.size());
  ASSERT_EQ(reader.next(), FrameReader::Next::BeginFrame);
  ASSERT_TRUE(reader.begin_frame(UINT32_MAX));
  ASSERT_TRUE(reader.begin_payload({}, 100));
  EXPECT_EQ(reader.room()->size(), 100u);
  reader.received(100);
  EXPECT_EQ(reader.room()->size(), FrameReader::kPayloadAtOnce - 100);
}

}  // namespace
}  // namespace weft::net
