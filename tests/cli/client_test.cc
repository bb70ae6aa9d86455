// A user's connection against a broker that says what the test wants: what is sent to whom, what refusals,
// lost connections and wrong answers become. Both sides run on one loop.
#include "cli/client.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cli/follow.h"
#include "net/listener.h"
#include "proto/codec/codec.h"
#include "storage/blob_store.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {

using proto::Message;

class FakeBroker {
 public:
  using Answer = std::function<void(const net::ConnectionPtr&, const Message&)>;
  using Chunk = std::function<void(const net::ConnectionPtr&, const proto::ChunkFrame&)>;

  explicit FakeBroker(net::Loop& loop) : identity_(*security::Identity::generate()) {
    auto listener =
        net::Listener::open(loop, {"127.0.0.1", 0}, {.identity = identity_.get(), .limits = {}, .shape = {}},
                            [this](net::ConnectionPtr connection) { on_connection(std::move(connection)); });
    EXPECT_TRUE(listener.has_value()) << (listener ? "" : listener.error().message);
    listener_ = std::move(*listener);
  }
  BrokerAddress address() const {
    return {.endpoint = listener_->endpoint(),
            .token = security::make_token(security::Role::Submitter, identity_->id())};
  }
  static void send(const net::ConnectionPtr& connection, const Message& message) {
    connection->send(peer::message_frame(message));
  }
  void close_all() {
    for (const auto& connection : std::exchange(connections_, {})) connection->close();
  }

  // All but Hello, which is granted unless `refusal` is set.
  Answer answer = [](const net::ConnectionPtr&, const Message&) {};
  Chunk chunk = [](const net::ConnectionPtr&, const proto::ChunkFrame&) {};
  std::optional<proto::Refusal> refusal;
  std::vector<proto::Hello> hellos;
  size_t connected = 0;

 private:
  void on_connection(net::ConnectionPtr connection) {
    ++connected;
    connections_.push_back(connection);
    connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
    const std::weak_ptr<net::Connection> weak = connection;
    connection->start({.on_frame =
                           [this, weak](net::InFrame frame) {
                             if (const auto here = weak.lock()) on_frame(here, frame);
                           },
                       .on_closed = [](const Error&) {}});
  }
  void on_frame(const net::ConnectionPtr& connection, const net::InFrame& frame) {
    if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk))
      return chunk(connection, proto::decode_chunk(frame.payload.span()).value());
    const Message message = proto::decode(frame.payload.span()).value();
    if (const auto* hello = std::get_if<proto::Hello>(&message)) {
      hellos.push_back(*hello);
      if (refusal) return send(connection, *refusal);
      return send(connection, proto::HelloAck{.software = "9.9", .name = "fake"});
    }
    answer(connection, message);
  }

  std::unique_ptr<security::Identity> identity_;
  std::unique_ptr<net::Listener> listener_;
  std::vector<net::ConnectionPtr> connections_;
};

class ClientTest : public testing::Test {
 protected:
  ClientTest() { setenv("XDG_CONFIG_HOME", scratch_.folder().c_str(), 1); }
  ~ClientTest() override { unsetenv("XDG_CONFIG_HOME"); }

  Result<std::unique_ptr<Client>> connect(const BrokerAddress& address) {
    return Client::connect(loop_, {.address = address, .identity = identity_.get()});
  }
  std::unique_ptr<Client> connected() {
    auto client = connect(broker_.address());
    EXPECT_TRUE(client.has_value()) << (client ? "" : client.error().message);
    return client ? std::move(*client) : nullptr;
  }

  test::Scratch scratch_;
  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  FakeBroker broker_{loop_};
};

TEST_F(ClientTest, ShowsItsTokenAndIsAdmitted) {
  const BrokerAddress address = broker_.address();
  const auto client = connect(address);
  ASSERT_TRUE(client.has_value()) << client.error().message;
  EXPECT_EQ((*client)->broker().software, "9.9");
  ASSERT_EQ(broker_.hellos.size(), 1u);
  EXPECT_EQ(broker_.hellos[0].role, proto::Role::Submitter);
  EXPECT_EQ(broker_.hellos[0].token->secret, address.token.secret.bytes);
}

TEST_F(ClientTest, AnotherKeyThanTheTokensNeverSeesTheSecret) {
  BrokerAddress address = broker_.address();
  address.token.broker.digest.bytes[5] ^= 1;
  const auto client = connect(address);
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::PermissionDenied);
  EXPECT_TRUE(broker_.hellos.empty());
}

TEST_F(ClientTest, ARefusedHelloIsTheError) {
  broker_.refusal = proto::Refusal{.code = ErrorCode::PermissionDenied, .message = "the token has expired"};
  const auto client = connect(broker_.address());
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::PermissionDenied);
  EXPECT_EQ(client.error().message, "the token has expired");
}

TEST_F(ClientTest, NobodyListeningIsUnavailable) {
  BrokerAddress address = broker_.address();
  address.endpoint.port = 1;
  const auto client = connect(address);
  ASSERT_FALSE(client.has_value());
  EXPECT_EQ(client.error().code, ErrorCode::Unavailable);
}

TEST_F(ClientTest, ARefusalIsTriedAgainOnlyWhereItSaysSo) {
  size_t asked = 0;
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message&) {
    if (++asked == 1)
      FakeBroker::send(connection,
                       proto::Refusal{.code = ErrorCode::Unavailable, .message = "not yet", .retry = true});
    else
      FakeBroker::send(connection, proto::Done{});
  };
  const auto client = connected();
  ASSERT_TRUE(client);
  EXPECT_TRUE(client->ask<proto::Done>(proto::StopJob{1}).has_value());
  EXPECT_EQ(asked, 2u);
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message&) {
    ++asked;
    FakeBroker::send(connection, proto::Refusal{.code = ErrorCode::NotFound, .message = "no such job"});
  };
  const auto refused = client->ask<proto::Done>(proto::StopJob{1});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::NotFound);
  EXPECT_EQ(asked, 3u);
}

TEST_F(ClientTest, ALostConnectionEndsTheQuestion) {
  broker_.answer = [&](const net::ConnectionPtr&, const Message&) { broker_.close_all(); };
  const auto client = connected();
  ASSERT_TRUE(client);
  const auto answer = client->ask<proto::JobList>(proto::ListJobs{});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::Unavailable);
  EXPECT_TRUE(client->lost());
}

TEST_F(ClientTest, BytesThatAreNoMessageEndTheConnection) {
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message&) {
    connection->send({.kind = 1, .head = {std::byte{0xff}, std::byte{0xff}, std::byte{0xff}}, .body = {}});
  };
  const auto client = connected();
  ASSERT_TRUE(client);
  EXPECT_FALSE(client->ask<proto::JobList>(proto::ListJobs{}).has_value());
  EXPECT_TRUE(client->lost());
}

TEST_F(ClientTest, InterruptionEndsEveryWait) {
  bool interrupted = false;
  broker_.answer = [&](const net::ConnectionPtr&, const Message&) { interrupted = true; };
  const auto client =
      Client::connect(loop_, {.address = broker_.address(), .identity = identity_.get(), .interrupted = [&] {
                                return interrupted;
                              }});
  ASSERT_TRUE(client.has_value());
  const auto answer = (*client)->ask<proto::JobList>(proto::ListJobs{});
  ASSERT_FALSE(answer.has_value());
  EXPECT_EQ(answer.error().code, ErrorCode::Cancelled);
}

TEST_F(ClientTest, BlobsGoUpInPiecesAndComeBackTheSame) {
  std::string text(2'500'000, 'x');
  for (size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  const auto file = scratch_.write("file", text);
  const storage::BlobSource source{.file = file, .range = {.offset = 100'000, .size = 2'300'000}};
  const auto bytes = std::as_bytes(std::span(text)).subspan(100'000, 2'300'000);
  const Digest name = storage::sha256(bytes);

  std::map<uint64_t, std::vector<std::byte>> received;
  uint64_t size = 0;
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message& message) {
    if (const auto* put = std::get_if<proto::PutBlob>(&message)) size = put->size;
    if (const auto* get = std::get_if<proto::GetBlob>(&message)) {
      const auto& kept = received.begin()->second;
      FakeBroker::send(connection, proto::BlobAnswer{get->request, ErrorCode::Internal, "", kept.size()});
      for (size_t at = 0; at < kept.size(); at += 1'000'000) {
        const auto piece = std::make_shared<std::vector<std::byte>>(
            kept.begin() + static_cast<std::ptrdiff_t>(at),
            kept.begin() + static_cast<std::ptrdiff_t>(std::min(kept.size(), at + 1'000'000)));
        connection->send(
            {.kind = 3, .head = proto::encode_chunk_head(get->request), .body = {piece, *piece}});
      }
    }
  };
  broker_.chunk = [&](const net::ConnectionPtr& connection, const proto::ChunkFrame& chunk) {
    auto& kept = received[chunk.request];
    kept.insert(kept.end(), chunk.bytes.begin(), chunk.bytes.end());
    if (kept.size() == size)
      FakeBroker::send(connection, proto::BlobAnswer{chunk.request, ErrorCode::Internal, "", 0});
  };
  const auto client = connected();
  ASSERT_TRUE(client);
  uint64_t sent = 0;
  ASSERT_TRUE(client->put(name, source, [&](uint64_t count) { sent += count; }).has_value());
  ASSERT_TRUE(client->finish_puts().has_value());
  EXPECT_EQ(sent, 2'300'000u);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_EQ(storage::sha256(received.begin()->second), name);

  const std::vector<Digest> blobs(3, name);
  const std::vector<uint64_t> sizes(3, 2'300'000);
  size_t come = 0;
  const Status got = client->get(blobs, sizes, [&](size_t, std::vector<std::byte> blob) -> Status {
    ++come;
    EXPECT_EQ(storage::sha256(blob), name);
    return {};
  });
  EXPECT_TRUE(got.has_value()) << got.error().message;
  EXPECT_EQ(come, 3u);
  const std::vector<uint64_t> others(3, 2'300'001);
  const Status wrong = client->get(blobs, others, [](size_t, std::vector<std::byte>) { return Status{}; });
  ASSERT_FALSE(wrong.has_value());
  EXPECT_EQ(wrong.error().code, ErrorCode::Corrupted);
}

TEST_F(ClientTest, ABlobThatIsNotTakenIsTheError) {
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message& message) {
    if (const auto* put = std::get_if<proto::PutBlob>(&message))
      FakeBroker::send(connection,
                       proto::BlobAnswer{put->request, ErrorCode::ResourceExhausted, "the disk is full", 0});
  };
  const auto client = connected();
  ASSERT_TRUE(client);
  const auto file = scratch_.write("file", std::string(10'000, 'x'));
  Status status = client->put({}, {.file = file, .range = {.offset = 0, .size = 10'000}}, [](uint64_t) {});
  if (status) status = client->finish_puts();
  ASSERT_FALSE(status.has_value());
  EXPECT_EQ(status.error().code, ErrorCode::ResourceExhausted);
  EXPECT_NE(status.error().message.find("the disk is full"), std::string::npos);
}

// Events by sequence; the report counts them.
class CountingReport : public Report {
 public:
  void show_at(const RunEvent& event, int64_t) override {
    if (const auto* notice = std::get_if<NoticeEvent>(&event)) texts.push_back(notice->text);
    if (const auto* state = std::get_if<StateEvent>(&event)) texts.push_back(state->state);
  }
  bool is_unread() const override { return false; }
  std::vector<std::string> texts;
};

TEST_F(ClientTest, EventsGoOnWhereTheyWereWhenTheConnectionIsLost) {
  const auto access = BrokerAccess::open(broker_.address(), &loop_);
  ASSERT_TRUE(access.has_value()) << access.error().message;
  std::vector<uint64_t> from;
  broker_.answer = [&](const net::ConnectionPtr& connection, const Message& message) {
    const auto* get = std::get_if<proto::GetEvents>(&message);
    if (get == nullptr) return;
    from.push_back(get->from_sequence);
    const auto notice = [&](uint64_t sequence) {
      proto::JobEvent event;
      event.job = 5;
      event.sequence = sequence;
      event.kind = proto::JobEventKind::Notice;
      event.text = std::to_string(sequence);
      FakeBroker::send(connection, event);
    };
    if (from.size() == 1) {
      for (const uint64_t sequence : {1, 2, 3}) notice(sequence);
      return connection->close(std::chrono::seconds(1));
    }
    for (const uint64_t sequence : {3, 4}) notice(sequence);  // one of them again
    proto::JobEvent end;
    end.job = 5;
    end.sequence = 5;
    end.state = proto::JobState::Finished;
    FakeBroker::send(connection, end);
    FakeBroker::send(connection, proto::EventsEnd{5});
  };
  CountingReport report;
  std::unique_ptr<Client> client;
  const auto followed = follow_job(**access, client, 5, {.follow = true, .status_every = {}}, report);
  ASSERT_TRUE(followed.has_value()) << followed.error().message;
  EXPECT_EQ(followed->state, proto::JobState::Finished);
  EXPECT_EQ(from, (std::vector<uint64_t>{1, 4}));
  EXPECT_EQ(report.texts, (std::vector<std::string>{"1", "2", "3", "4", "finished"}));
}

}  // namespace
}  // namespace weft::cli
