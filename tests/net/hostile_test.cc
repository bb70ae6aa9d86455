// What strangers send to a public port, and peers that break the protocol once they are in.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <openssl/err.h>

#include "net/relay.h"
#include "security/keys.h"
#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

struct SslFree {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

// OpenSSL in the test's own hands, on a socket of its own: a client as the world has them.
class StrangeClient {
 public:
  StrangeClient(Meeting& meeting, const std::function<void(SSL_CTX*)>& set_up)
      : meeting_(meeting), socket_(meeting.listener->endpoint()), context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
    set_up(context_.get());
    ssl_.reset(SSL_new(context_.get()));
    EXPECT_EQ(SSL_set_fd(ssl_.get(), socket_.get()), 1);
    SSL_set_connect_state(ssl_.get());
    const int flags = ::fcntl(socket_.get(), F_GETFL);
    ::fcntl(socket_.get(), F_SETFL, flags | O_NONBLOCK);
  }
  SSL* ssl() { return ssl_.get(); }

  // Whether it came through; the server's judgement may come later.
  bool handshake() {
    int result = -1;
    meeting_.run_until([&] {
      result = SSL_do_handshake(ssl());
      if (result == 1) return true;
      const int error = SSL_get_error(ssl(), result);
      meeting_.loop.post([] {});
      return error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE;
    });
    ERR_clear_error();
    return result == 1;
  }
  void write(std::span<const std::byte> bytes) {
    size_t size = 0;
    (void)SSL_write_ex(ssl(), bytes.data(), bytes.size(), &size);
    ERR_clear_error();
  }
  void renew_key() {
    EXPECT_EQ(SSL_key_update(ssl(), SSL_KEY_UPDATE_NOT_REQUESTED), 1);
    EXPECT_EQ(SSL_do_handshake(ssl()), 1);
    ERR_clear_error();
  }
  // Until the server has closed.
  bool is_dropped() {
    bool is_over = false;
    meeting_.run_until([&] {
      std::byte byte;
      size_t size = 0;
      const int result = SSL_read_ex(ssl(), &byte, 1, &size);
      is_over = result != 1 && SSL_get_error(ssl(), result) != SSL_ERROR_WANT_READ;
      meeting_.loop.post([] {});
      return is_over;
    });
    ERR_clear_error();
    return is_over;
  }

 private:
  Meeting& meeting_;
  RawSocket socket_;
  std::unique_ptr<SSL_CTX, SslFree> context_;
  std::unique_ptr<SSL, SslFree> ssl_;
};

void use_identity(SSL_CTX* context) {
  SSL_CTX_use_certificate(context, client_identity().keys().certificate.get());
  SSL_CTX_use_PrivateKey(context, client_identity().keys().key.get());
}

TEST(Hostile, AClientWithACertificateIsLetIn) {  // the others below are judged by what they do otherwise
  Meeting meeting;
  StrangeClient client(meeting, use_identity);
  EXPECT_TRUE(client.handshake());
  ASSERT_TRUE(meeting.run_until([&] { return meeting.accepted.size() == 1; }));
  EXPECT_EQ(meeting.accepted[0]->remote(), client_identity().id());
}

TEST(Hostile, AClientWithoutACertificateIsRefused) {
  Meeting meeting;
  StrangeClient client(meeting, [](SSL_CTX*) {});
  client.handshake();
  EXPECT_TRUE(client.is_dropped());
  EXPECT_EQ(meeting.listener->stats().handshakes_failed, 1u);
  EXPECT_TRUE(meeting.accepted.empty());
}

TEST(Hostile, Tls12IsRefused) {
  Meeting meeting;
  StrangeClient client(meeting, [](SSL_CTX* context) {
    use_identity(context);
    SSL_CTX_set_max_proto_version(context, TLS1_2_VERSION);
  });
  EXPECT_FALSE(client.handshake());
  EXPECT_EQ(meeting.listener->stats().handshakes_failed, 1u);
}

TEST(Hostile, KeysOfOtherKindsAreRefused) {
  Meeting meeting;
  StrangeClient client(meeting, [](SSL_CTX* context) {
    const security::KeyPtr key(EVP_EC_gen("P-256"));
    const security::CertificatePtr certificate(X509_new());
    X509_set_pubkey(certificate.get(), key.get());
    X509_gmtime_adj(X509_getm_notBefore(certificate.get()), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 10000);
    ASSERT_GT(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
    SSL_CTX_use_certificate(context, certificate.get());
    SSL_CTX_use_PrivateKey(context, key.get());
  });
  client.handshake();
  EXPECT_TRUE(client.is_dropped());
  EXPECT_TRUE(meeting.accepted.empty());
  EXPECT_EQ(meeting.listener->stats().handshakes_failed, 1u);
}

TEST(Hostile, NoTicketsAndNothingToResume) {
  Meeting meeting;
  StrangeClient client(meeting, use_identity);
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(meeting.run_until([&] { return meeting.accepted.size() == 1; }));
  Side server{.connection = meeting.accepted[0]};
  server.start();
  server.connection->send(make_frame(1, random_bytes(1, 100)));
  std::array<std::byte, 105> bytes;
  size_t size = 0;
  ASSERT_TRUE(meeting.run_until([&] {
    size_t got = 0;
    if (SSL_read_ex(client.ssl(), bytes.data() + size, bytes.size() - size, &got) == 1) size += got;
    meeting.loop.post([] {});
    return size == bytes.size();
  }));
  SSL_SESSION* session = SSL_get0_session(client.ssl());
  EXPECT_EQ(SSL_SESSION_is_resumable(session), 0);
  EXPECT_EQ(SSL_get_early_data_status(client.ssl()), SSL_EARLY_DATA_NOT_SENT);
  EXPECT_STREQ(SSL_get_cipher_name(client.ssl()), "TLS_AES_128_GCM_SHA256");
}

// One such connection once kept the loop busy for as long as it liked: no timer ran, every peer was evicted.
TEST(Hostile, NewKeysBeforeAnyDataAreRefused) {
  Meeting meeting;
  StrangeClient client(meeting, use_identity);
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(meeting.run_until([&] { return meeting.accepted.size() == 1; }));
  Side server{.connection = meeting.accepted[0]};
  server.start();
  client.renew_key();
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(server.closed->code, ErrorCode::Corrupted) << server.closed->message;
}

TEST(Hostile, NewKeysWithoutEndAreRefused) {
  Meeting meeting;
  StrangeClient client(meeting, use_identity);
  ASSERT_TRUE(client.handshake());
  ASSERT_TRUE(meeting.run_until([&] { return meeting.accepted.size() == 1; }));
  Side server{.connection = meeting.accepted[0]};
  server.start();
  const std::byte frame[] = {std::byte{1}, {}, {}, {}, std::byte{7}, std::byte{9}};
  for (int i = 0; i < 4; ++i) {
    client.write(frame);
    client.renew_key();
  }
  client.write(frame);
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 5 || server.closed; }));
  EXPECT_FALSE(server.closed) << server.closed->message;  // what a long stream needs is let through
  client.renew_key();
  client.write(frame);
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(server.closed->code, ErrorCode::Corrupted) << server.closed->message;
}

TEST(Hostile, ALongClientHelloIsRefusedByItsHead) {
  Meeting meeting;
  RawSocket socket(meeting.listener->endpoint());
  std::vector<std::byte> hello{std::byte{0x16}, std::byte{3}, std::byte{1},   std::byte{0x40}, {},
                               std::byte{1},    {},           std::byte{0xff}};
  socket.send(hello);
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_handshakes == 1; }));
  socket.send(std::vector{std::byte{0xff}});
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().handshakes_failed == 1; }));
}

// Tiny frames cost more than their bytes: the turns of others come all the same.
TEST(Hostile, AFloodOfTinyFramesLeavesTimersTheirTurn) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  uint64_t frames = 0, most_in_a_turn = 0, in_turn = 0;
  server.connection.reset();
  const auto outcome = meeting.begin();
  ASSERT_TRUE(meeting.run_until([&] { return outcome->is_connected() && !meeting.accepted.empty(); }));
  meeting.accepted[0]->start({.on_frame =
                                  [&](InFrame) {
                                    ++frames;
                                    ++in_turn;
                                  },
                              .on_closed = [](const Error&) {}});
  std::function<void()> other = [&] {
    most_in_a_turn = std::max(most_in_a_turn, in_turn);
    in_turn = 0;
    if (frames < 100'000) meeting.loop.post(other);
  };
  meeting.loop.post(other);
  for (int i = 0; i < 100'000; ++i) (**outcome->result)->send(make_frame(1, {}));
  ASSERT_TRUE(meeting.run_until([&] { return frames == 100'000; }));
  EXPECT_LE(most_in_a_turn, 5000u);  // a turn has a thousand; two may come together
}

TEST(Hostile, GarbageAfterTheHandshakeOnlyEndsThatConnection) {
  const uint64_t seed = 12;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  Meeting meeting;
  Side honest_client, honest_server;
  meeting.join(honest_client, honest_server);
  for (int round = 0; round < 30; ++round) {
    StrangeClient client(meeting, use_identity);
    ASSERT_TRUE(client.handshake());
    ASSERT_TRUE(meeting.run_until([&] { return !meeting.accepted.empty(); }));
    Side server{.connection = std::move(meeting.accepted.back())};
    meeting.accepted.clear();
    server.start({.frame_size_max = 1000});
    // Inside TLS: random frames, most of them announced too large.
    client.write(random_bytes(rng.next_u64(), 1 + rng.below(20'000)));
    client.write(random_bytes(rng.next_u64(), 1 + rng.below(20'000)));
    bool is_quiet = false;
    meeting.run_until([&] {
      if (server.closed) return true;
      if (is_quiet) return true;
      is_quiet = server.connection->stats().bytes_received > 2;
      meeting.loop.post([] {});
      return false;
    });
  }
  honest_client.connection->send(make_frame(1, random_bytes(1, 100)));
  ASSERT_TRUE(meeting.run_until([&] { return honest_server.frames.size() == 1; }));
}

TEST(Hostile, RandomBytesToThePortDoNoHarm) {
  const uint64_t seed = 8086;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  Meeting meeting({.limits = {.handshake_deadline = std::chrono::milliseconds(200)},
                   .relay_ticket_is_granted = [](const RelayTicket& t) { return t.bytes[0] % 2 == 0; }});
  constexpr int kRounds = 300;
  for (int round = 0; round < kRounds; ++round) {
    RawSocket socket(meeting.listener->endpoint());
    auto bytes = random_bytes(rng.next_u64(), 1 + rng.below(3000));
    switch (rng.below(5)) {
      case 0:
        bytes[0] = std::byte{0x16};
        break;
      case 1: {  // a record's header of the right form
        const std::byte header[] = {std::byte{0x16}, std::byte{3}, std::byte{1},
                                    std::byte{2},    std::byte{0}, std::byte{1}};
        bytes.insert(bytes.begin(), std::begin(header), std::end(header));
        break;
      }
      case 2: {
        RelayTicket ticket;
        ticket.bytes.fill(static_cast<uint8_t>(rng.below(256)));
        const auto preamble = relay_preamble({ticket, rng.below(2) == 0});
        bytes.insert(bytes.begin(), preamble.begin(), preamble.end());
        break;
      }
      case 3:
        bytes[0] = std::byte{'W'};
        break;
      default:
        break;
    }
    socket.send(bytes);
    for (int turns = 0; turns < 3; ++turns) meeting.loop.run_until(Duration::zero(), [] { return false; });
  }
  Side client, server;
  meeting.join(client, server);
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_handshakes == 0; }));
  EXPECT_TRUE(meeting.accepted.empty());
}

// A real handshake's bytes, with some of them changed on their way.
TEST(Hostile, DamagedHandshakesAreRefused) {
  const uint64_t seed = 17;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  Meeting meeting({.limits = {.handshake_deadline = std::chrono::milliseconds(200)}});
  for (int round = 0; round < 100; ++round) {
    std::unique_ptr<SSL_CTX, SslFree> context(SSL_CTX_new(TLS_client_method()));
    use_identity(context.get());
    std::unique_ptr<SSL, SslFree> ssl(SSL_new(context.get()));
    BIO* in = BIO_new(BIO_s_mem());
    BIO* out = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl.get(), in, out);
    SSL_set_connect_state(ssl.get());
    (void)SSL_do_handshake(ssl.get());
    char* text = nullptr;
    const long size = BIO_get_mem_data(out, &text);
    std::vector<std::byte> hello(reinterpret_cast<std::byte*>(text),
                                 reinterpret_cast<std::byte*>(text) + size);
    for (uint64_t changes = 1 + rng.below(4); changes > 0; --changes)
      hello[rng.below(hello.size())] = static_cast<std::byte>(rng.below(256));
    RawSocket socket(meeting.listener->endpoint());
    socket.send(hello);
    for (int turns = 0; turns < 3; ++turns) meeting.loop.run_until(Duration::zero(), [] { return false; });
  }
  ERR_clear_error();
  ASSERT_TRUE(meeting.run_until([&] {
    return meeting.listener->stats().accepted == 100 && meeting.listener->stats().open_handshakes == 0;
  }));
  EXPECT_TRUE(meeting.accepted.empty());
}

}  // namespace
}  // namespace weft::net::test
