// What somebody who was admitted does with many connections at once, each of which keeps to what one may do.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

#include "proto/codec/codec.h"
#include "tests/attacks/raw_client.h"
#include "tests/attacks/siege.h"

namespace weft::attacks {
namespace {

std::vector<std::byte> frame(proto::FrameKind kind, std::span<const std::byte> payload, size_t size) {
  std::vector<std::byte> bytes;
  for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<std::byte>(size >> (8 * i)));
  bytes.push_back(static_cast<std::byte>(kind));
  bytes.insert(bytes.end(), payload.begin(), payload.end());
  return bytes;
}
std::vector<std::byte> frame(const proto::Message& message) {
  const auto payload = proto::encode(message);
  return frame(proto::FrameKind::Message, payload, payload.size());
}

// Nothing: it was not let in.
std::unique_ptr<RawTls> admitted(const BrokerProcess& broker, const security::Identity& identity,
                                 proto::Role role, const std::string& from) {
  auto tls = std::make_unique<RawTls>(broker.endpoint(), identity, from);
  proto::Hello hello{.software = "test", .role = role};
  const security::Token& token =
      role == proto::Role::Submitter ? broker.submitter_token() : broker.peer_token();
  hello.token = proto::TokenProof{token.id, token.secret.bytes};
  hello.name = "many";
  if (role == proto::Role::Peer)
    hello.device =
        proto::DeviceReport{.device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "many"};
  if (!tls->handshake() || !tls->write(frame(hello)) || !tls->read_some()) return nullptr;
  return tls;
}

std::string address(size_t number) { return "127.0.0." + std::to_string(2 + number % 8); }

// Each brings nearly all of a message of `size` and never its end.
void begin_messages(size_t size, size_t count) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    const std::vector<std::byte> head = frame(proto::FrameKind::Message, std::vector<std::byte>(1), size);
    const std::vector<std::byte> piece(64 << 10, std::byte{1});
    std::vector<std::unique_ptr<RawTls>> connections;
    uint64_t sent = 0;
    for (size_t number = 0; number < count && !is_over; ++number) {
      const auto identity = *security::Identity::generate();
      auto tls = admitted(siege.broker(), *identity, proto::Role::Peer, address(number));
      if (!tls || !tls->write(head)) continue;
      for (size_t bytes = 0; bytes + 2 * piece.size() <= size && tls->write(piece); bytes += piece.size())
        sent += piece.size();
      connections.push_back(std::move(tls));
    }
    std::printf("  %zu connections, %llu MiB\n", connections.size(),
                static_cast<unsigned long long>(sent >> 20));
    while (!is_over) ::poll(nullptr, 0, 10);
  });
}

TEST(ManyConnections, LargeMessagesThatNeverEnd) { begin_messages(proto::kMessageSizeMax, 300); }
TEST(ManyConnections, MessagesThatNeverEnd) { begin_messages(1 << 20, 300); }

// Over each of them comes `first` and then `again` without end, as fast as it is taken; nothing is read.
struct Flood {
  proto::Role role = proto::Role::PeerBulk;
  size_t connections = 24;
  bool is_of_one_key = false;
  std::vector<std::byte> first{}, again{};
};
void withstands(const Flood& flood) {
  Siege siege;
  siege.withstands([&](const std::atomic<bool>& is_over) {
    const auto of_all = *security::Identity::generate();
    std::atomic<uint64_t> sent = 0, let_in = 0;
    std::vector<std::thread> threads;
    for (size_t number = 0; number < flood.connections; ++number)
      threads.emplace_back([&, number] {
        const auto own = *security::Identity::generate();
        while (!is_over) {
          const auto tls =
              admitted(siege.broker(), flood.is_of_one_key ? *of_all : *own, flood.role, address(number));
          if (!tls) continue;
          ++let_in;
          if (!flood.first.empty()) (void)tls->write(flood.first);
          while (!is_over && tls->write(flood.again)) sent += flood.again.size();
        }
      });
    for (std::thread& thread : threads) thread.join();
    std::printf("  let in %llu times, %llu MiB\n", static_cast<unsigned long long>(let_in),
                static_cast<unsigned long long>(sent >> 20));
  });
}

// Faster than any disk takes them.
Flood upload(size_t chunk_size, bool is_of_one_key) {
  std::vector<std::byte> chunk = proto::encode_chunk_head(1);
  chunk.resize(chunk.size() + chunk_size, std::byte{1});
  return {.is_of_one_key = is_of_one_key,
          .first = frame(proto::PutBlob{.request = 1, .size = uint64_t{1} << 32, .durable = false}),
          .again = frame(proto::FrameKind::Chunk, chunk, chunk.size())};
}
std::vector<std::byte> many(const proto::Message& message, size_t count) {
  std::vector<std::byte> all;
  const auto one = frame(message);
  for (size_t i = 0; i < count; ++i) all.insert(all.end(), one.begin(), one.end());
  return all;
}

TEST(ManyConnections, UploadsOfOneKey) { withstands(upload(proto::kChunkSizeMax, /*is_of_one_key=*/true)); }
TEST(ManyConnections, UploadsOfManyKeys) {
  withstands(upload(proto::kChunkSizeMax, /*is_of_one_key=*/false));
}
TEST(ManyConnections, SmallChunksOfManyKeys) { withstands(upload(60'000, /*is_of_one_key=*/false)); }
TEST(ManyConnections, HeartbeatsWhoseAnswersNobodyReads) {
  withstands({.role = proto::Role::Peer, .again = many(proto::Heartbeat{1, {1 << 30}, {}}, 1000)});
}
TEST(ManyConnections, ListsThatNobodyReads) {
  withstands({.role = proto::Role::Submitter, .again = many(proto::ListPeers{}, 1000)});
}
TEST(ManyConnections, QuestionsForBlobs) {
  withstands(
      {.again = frame(proto::HaveBlobs{.request = 1, .blobs = std::vector<Digest>(1000), .durable = false})});
}

}  // namespace
}  // namespace weft::attacks
