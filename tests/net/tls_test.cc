#include "net/tls.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>

#include "net/byte_queue.h"
#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

// Two transports that are each other's other end, in memory.
struct Pipe {
  ByteQueue bytes[2];
  size_t piece_max = SIZE_MAX;
};
class PipeEnd final : public Transport {
 public:
  PipeEnd(std::shared_ptr<Pipe> pipe, size_t side) : pipe_(std::move(pipe)), side_(side) {}
  void set_events(Events*) override {}
  Io read(std::span<std::byte> into) override {
    ByteQueue& queue = pipe_->bytes[side_];
    if (queue.empty()) return Io::blocked();
    const auto front = queue.front();
    const size_t size = std::min({front.size(), into.size(), pipe_->piece_max});
    std::memcpy(into.data(), front.data(), size);
    queue.consume(size);
    return Io::ready(size);
  }
  Io write(std::span<const std::byte> from) override {
    const auto piece = from.first(std::min(from.size(), pipe_->piece_max));
    pipe_->bytes[1 - side_].append(piece);
    return Io::ready(piece.size());
  }
  void arm_read() override {}
  void arm_write() override {}
  size_t unsent() override { return 0; }
  void set_unsent_max(size_t) override {}
  void shut_write() override {}
  void close() override {}
  const std::string& remote_address() const override { return address_; }

 private:
  std::shared_ptr<Pipe> pipe_;
  size_t side_;
  std::string address_ = "pipe";
};

struct TlsPair {
  explicit TlsPair(size_t piece_max = SIZE_MAX) {
    pipe->piece_max = piece_max;
    client_settings = *TlsSettings::make(client_identity(), TlsSide::Client);
    server_settings = *TlsSettings::make(server_identity(), TlsSide::Server);
    client =
        std::move(*Tls::make(*client_settings, std::make_unique<PipeEnd>(pipe, 0), server_identity().id()));
    server =
        std::move(*Tls::make(*server_settings, std::make_unique<PipeEnd>(pipe, 1), client_identity().id()));
    Io states[2] = {Io::blocked(), Io::blocked()};
    for (int turns = 0; turns < 10'000; ++turns) {
      if (states[0].state == Io::State::Blocked) states[0] = client->handshake();
      client->flush();
      if (states[1].state == Io::State::Blocked) states[1] = server->handshake();
      server->flush();
    }
    EXPECT_EQ(states[0].state, Io::State::Ready);
    EXPECT_EQ(states[1].state, Io::State::Ready);
  }
  std::shared_ptr<Pipe> pipe = std::make_shared<Pipe>();
  std::shared_ptr<const TlsSettings> client_settings, server_settings;
  std::unique_ptr<Tls> client, server;

  std::vector<std::byte> carry(const std::vector<std::byte>& bytes) {
    std::vector<std::byte> got(bytes.size());
    size_t sent = 0, received = 0;
    while (received < bytes.size()) {
      if (sent < bytes.size() && client->has_room()) {
        const size_t size = std::min(bytes.size() - sent, kTlsRecordSize);
        EXPECT_EQ(client->write(std::span(bytes).subspan(sent, size)).state, Io::State::Ready);
        sent += size;
        client->flush();
      }
      const Io io = server->read(std::span(got).subspan(received));
      if (io.state == Io::State::Ready) received += io.size;
      if (io.state == Io::State::Failed || io.state == Io::State::End) {
        ADD_FAILURE() << server->error().message;
        break;
      }
    }
    return got;
  }
};

TEST(Tls, CarriesBytesInPiecesOfAnySize) {
  for (const size_t piece_max : {size_t{1}, size_t{7}, size_t{5000}, SIZE_MAX}) {
    TlsPair pair(piece_max);
    const auto bytes = random_bytes(1, piece_max < 100 ? 100'000 : 3'000'000);
    EXPECT_TRUE(pair.carry(bytes) == bytes) << piece_max;
  }
}

TEST(Tls, RenewsItsKeyUnderALongStream) {
  TlsPair pair;
  pair.client->key_update_bytes = 100'000;
  pair.server->key_update_bytes_min = 100'000;
  const auto bytes = random_bytes(1, 2'000'000);
  EXPECT_TRUE(pair.carry(bytes) == bytes);
  EXPECT_GE(pair.client->key_updates(), 15u);
}

TEST(Tls, ADamagedRecordIsAnError) {
  TlsPair pair;
  const auto bytes = random_bytes(1, 1000);
  ASSERT_EQ(pair.client->write(bytes).state, Io::State::Ready);
  pair.client->flush();
  ByteQueue& queue = pair.pipe->bytes[1];
  std::vector<std::byte> record(queue.front().begin(), queue.front().end());
  queue.clear();
  record[500] ^= std::byte{1};
  queue.append(record);
  std::array<std::byte, 1000> got;
  EXPECT_EQ(pair.server->read(got).state, Io::State::Failed);
  EXPECT_EQ(pair.server->error().code, ErrorCode::Corrupted) << pair.server->error().message;
}

TEST(ByteQueue, IsAQueueOfBytes) {
  const uint64_t seed = 6;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  ByteQueue queue;
  std::deque<std::byte> naive;
  for (int i = 0; i < 2000; ++i) {
    const auto bytes = random_bytes(rng.next_u64(), rng.below(i % 10 == 0 ? 200'000 : 3000));
    queue.append(bytes);
    naive.insert(naive.end(), bytes.begin(), bytes.end());
    for (size_t left = rng.below(naive.size() + 1); left > 0 && i % 3 != 0;) {
      const auto front = queue.front();
      const size_t size = std::min(front.size(), left);
      ASSERT_GT(size, 0u);
      ASSERT_TRUE(std::equal(front.begin(), front.begin() + static_cast<ptrdiff_t>(size), naive.begin()));
      queue.consume(size);
      naive.erase(naive.begin(), naive.begin() + static_cast<ptrdiff_t>(size));
      left -= size;
    }
    ASSERT_EQ(queue.size(), naive.size());
  }
}

}  // namespace
}  // namespace weft::net::test
