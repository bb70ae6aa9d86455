#include "tests/attacks/lying_peer.h"

#include <chrono>
#include <memory>
#include <variant>

#include "net/connection.h"
#include "net/loop.h"
#include "proto/codec/codec.h"
#include "storage/blob_store.h"

namespace weft::attacks {

namespace {

constexpr Duration kTurn = std::chrono::milliseconds(1);
constexpr int kBurst = 10'000;

net::OutFrame frame_of(const proto::Message& message) {
  return {
      .kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}};
}

void put(net::Connection& connection, std::span<const std::byte> blob) {
  connection.send(
      frame_of(proto::PutBlob{.request = 0, .sha256 = storage::sha256(blob), .size = blob.size()}));
  for (size_t at = 0; at < blob.size(); at += proto::kChunkSizeMax) {
    std::vector<std::byte> chunk = proto::encode_chunk_head(0);
    const auto piece = blob.subspan(at, std::min(proto::kChunkSizeMax, blob.size() - at));
    chunk.insert(chunk.end(), piece.begin(), piece.end());
    connection.send({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk), .head = std::move(chunk)});
  }
}

}  // namespace

LiesTold tell(const net::Endpoint& broker, const security::Token& token, const Lies& lies,
              const std::atomic<bool>& is_over) {
  LiesTold told;
  net::Loop loop;
  auto identity = *security::Identity::generate();
  while (!is_over) {
    if (lies.is_fickle) identity = *security::Identity::generate();
    net::ConnectionPtr connection;
    bool is_admitted = false, is_closed = false;
    const auto attempt = net::connect(
        loop, broker,
        {.identity = identity.get(),
         .expected = token.broker,
         .deadline = std::chrono::seconds(10),
         .shape = {}},
        [&](Result<net::ConnectionPtr> connected) {
          if (!connected) {
            is_closed = true;
            return;
          }
          connection = std::move(*connected);
          connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
          connection->start({.on_frame =
                                 [&](const net::InFrame& frame) {
                                   const auto message = proto::decode(frame.payload.span());
                                   if (!message || !std::holds_alternative<proto::HelloAck>(*message)) return;
                                   is_admitted = true;
                                   if (!lies.blob.empty()) put(*connection, lies.blob);
                                   if (!lies.reads) connection->pause_reading(true);
                                 },
                             .on_closed = [&](const Error&) { is_closed = true; }});
          proto::Hello hello{.software = "test", .role = lies.role};
          hello.token = proto::TokenProof{token.id, token.secret.bytes};
          hello.name = "liar";
          if (lies.role == proto::Role::Peer)
            hello.device = proto::DeviceReport{
                .device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "lies"};
          connection->send(frame_of(hello));
        });
    ++told.connections;
    while (!is_over && !is_closed) {
      loop.run_until(kTurn, [&] { return is_closed; });
      if (lies.is_fickle && is_admitted) break;
      // Between bursts it learns whether it was thrown out.
      for (int burst = 0; burst < kBurst && is_admitted && !is_closed && !is_over &&
                          connection->stats().bytes_queued < lies.ahead;
           ++burst) {
        net::OutFrame frame = frame_of(lies.next(told.messages++));
        told.bytes += frame.payload_size();
        connection->send(std::move(frame));
      }
    }
    if (connection) connection->close();
  }
  return told;
}

}  // namespace weft::attacks
