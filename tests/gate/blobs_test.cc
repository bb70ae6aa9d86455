// Blobs at the port of a broker at work: what a connection puts, packed or not, right or wrong.
#include <gtest/gtest.h>

#include "base/rng.h"
#include "broker/service/broker_service.h"
#include "net/connection.h"
#include "peer/service/bulk.h"
#include "storage/blob_store.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using Blob = std::vector<std::byte>;
using proto::BlobAnswer;
using proto::Message;

Blob random_bytes(uint64_t seed, size_t size) {
  Rng rng(seed, 0);
  Blob bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

// A few numbers moved.
Blob moved(Blob blob) {
  for (size_t i = 0; i < blob.size(); i += 4000) blob[i] ^= std::byte{1};
  return blob;
}

Blob packed(std::span<const std::byte> blob, std::span<const std::byte> base = {}) {
  storage::Packer packer;
  Blob all;
  for (size_t at = 0; at < blob.size(); at += storage::kPackedUnit) {
    const size_t size = std::min(storage::kPackedUnit, blob.size() - at);
    const Blob unit = packer.pack(blob.subspan(at, size), base.empty() ? base : base.subspan(at, size));
    all.insert(all.end(), unit.begin(), unit.end());
  }
  return all;
}

class GateBlobs : public ::testing::Test {
 protected:
  void SetUp() override {
    BrokerServiceOptions options;
    options.data_dir = scratch_.folder() / "broker";
    options.listen = {"127.0.0.1", 0};
    options.broker.software = "test";
    options.log = [](const std::string&) {};
    auto broker = BrokerService::start(std::move(options));
    ASSERT_TRUE(broker) << broker.error().message;
    broker_ = std::move(*broker);
    token_ = *security::parse_token(broker_->submitter_token().value());
    connect();
  }

  void connect() {
    connection_.reset();
    closed_ = false;
    messages_.clear();
    const net::ConnectOptions options{.identity = identity_.get(), .expected = token_.broker};
    const auto attempt =
        net::connect(loop_, broker_->endpoint(), options, [this](Result<net::ConnectionPtr> result) {
          ASSERT_TRUE(result) << result.error().message;
          connection_ = std::move(*result);
          connection_->set_limits({.frame_size_max = 2 << 20});
          connection_->start({.on_frame =
                                  [this](const net::InFrame& frame) {
                                    messages_.push_back(*proto::decode(frame.payload.span()));
                                    loop_.stop();
                                  },
                              .on_closed =
                                  [this](const Error&) {
                                    closed_ = true;
                                    loop_.stop();
                                  }});
          proto::Hello hello{.role = proto::Role::Submitter};
          hello.token = proto::TokenProof{.id = token_.id, .secret = {token_.secret.bytes}};
          say(hello);
        });
    ASSERT_TRUE(std::holds_alternative<proto::HelloAck>(next()));
  }
  void say(const Message& message) { connection_->send(peer::message_frame(message)); }
  // The next message; of a connection that ends, a Refusal.
  Message next() {
    const auto deadline = loop_.after(std::chrono::seconds(30), [this] { loop_.stop(); });
    while (messages_.empty() && !closed_) {
      loop_.run();
      if (loop_.now() > started_ + std::chrono::seconds(120)) break;
    }
    if (messages_.empty()) return proto::Refusal{.message = "closed"};
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  // In chunks of any size, `pieces` at least.
  void put(const Blob& blob, const Blob& stream, std::optional<Digest> base, uint64_t seed,
           size_t pieces = 8) {
    say(proto::PutBlob{.request = ++request_,
                       .sha256 = storage::sha256(blob),
                       .size = blob.size(),
                       .durable = false,
                       .packed = true,
                       .base = base});
    Rng rng(seed, 1);
    for (size_t at = 0, size = 0; at < stream.size(); at += size) {
      const size_t most = std::min<size_t>(200'000, stream.size() / pieces);
      size = pieces == 1 ? stream.size() : std::min<size_t>(stream.size() - at, 1 + rng.below(most));
      const auto kept = std::make_shared<const Blob>(stream.begin() + static_cast<ptrdiff_t>(at),
                                                     stream.begin() + static_cast<ptrdiff_t>(at + size));
      connection_->send({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                         .head = proto::encode_chunk_head(request_),
                         .body = {kept, *kept}});
    }
  }
  // The error that the answer tells; nothing when it is stored; Cancelled when the connection was ended.
  std::optional<ErrorCode> answer() {
    const Message message = next();
    const auto* answer = std::get_if<BlobAnswer>(&message);
    if (answer == nullptr) return ErrorCode::Cancelled;
    EXPECT_EQ(answer->request, request_);
    return answer->message.empty() ? std::nullopt : std::optional(answer->code);
  }
  bool is_missing(const Blob& blob) {
    say(proto::HaveBlobs{.request = ++request_, .blobs = {storage::sha256(blob)}, .durable = false});
    const Message message = next();
    return !std::get<proto::MissingBlobs>(message).blobs.empty();
  }

  test::Scratch scratch_;
  std::unique_ptr<BrokerService> broker_;
  security::Token token_;
  net::Loop loop_;
  const Instant started_ = loop_.now();
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  net::ConnectionPtr connection_;
  std::deque<Message> messages_;
  uint64_t request_ = 0;
  bool closed_ = false;
};

TEST_F(GateBlobs, WhatIsPackedIsStoredAsItWas) {
  Blob before;
  for (const size_t size : {size_t{20'000}, size_t{2'500'003}}) {
    const Blob first = random_bytes(size, size), second = moved(first);
    put(first, packed(first), {}, 1);
    EXPECT_EQ(answer(), std::nullopt);
    const Blob stream = packed(second, first);
    EXPECT_LT(stream.size(), second.size() / 20);
    put(second, stream, storage::sha256(first), 2);
    EXPECT_EQ(answer(), std::nullopt);
    EXPECT_FALSE(is_missing(second));
  }
}

TEST_F(GateBlobs, AWrongBaseIsSaidAndTheConnectionGoesOn) {
  const Blob base = random_bytes(1, 300'000), blob = moved(base), shorter = random_bytes(2, 1000);
  Blob other = base;
  other[7] ^= std::byte{2};
  put(blob, packed(blob, base), storage::sha256(base), 1);
  EXPECT_EQ(answer(), ErrorCode::NotFound) << "nobody has put it";
  put(shorter, packed(shorter), {}, 1);
  EXPECT_EQ(answer(), std::nullopt);
  put(blob, packed(blob, base), storage::sha256(shorter), 1);
  EXPECT_EQ(answer(), ErrorCode::NotFound) << "of another length";
  put(base, packed(base), {}, 1);
  EXPECT_EQ(answer(), std::nullopt);
  put(blob, packed(blob, other), storage::sha256(base), 1);
  EXPECT_EQ(answer(), ErrorCode::Corrupted) << "the differences to something else";
  EXPECT_TRUE(is_missing(blob));
  put(blob, packed(blob, base), storage::sha256(base), 1);
  EXPECT_EQ(answer(), std::nullopt);
}

// Of zeros a mebibyte is some ten bytes: a chunk of a mebibyte would be hours of work for everybody's files.
TEST_F(GateBlobs, AChunkHoldsOneUnitAtMost) {
  const Blob blob(3 << 20, std::byte{0});
  const Blob stream = packed(blob);
  ASSERT_LT(stream.size(), 1000u);
  put(blob, stream, {}, 1, /*pieces=*/1);
  EXPECT_EQ(answer(), ErrorCode::Cancelled);
  connect();
  put(blob, stream, {}, 1);
  EXPECT_EQ(answer(), std::nullopt);
}

// A stream with some bytes changed, or more of them: told as wrong, or the end of that connection alone.
TEST_F(GateBlobs, DamagedUnitsAreRefused) {
  const Blob blob(50'000, std::byte{7});
  const Blob stream = packed(blob);
  ASSERT_LT(stream.size(), 500u);
  int told = 0, ended = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed, 5);
    Blob damaged = stream;
    damaged[rng.below(damaged.size())] ^= static_cast<std::byte>(1 + rng.below(255));
    damaged.resize(damaged.size() + 64);  // whatever its length now says
    put(blob, damaged, {}, seed);
    const auto error = answer();
    ASSERT_TRUE(error) << "stored";
    told += error == ErrorCode::Corrupted;
    ended += error == ErrorCode::Cancelled;
    connect();
  }
  EXPECT_TRUE(is_missing(blob));
  EXPECT_GT(ended, 0) << told << " told";
}

}  // namespace
}  // namespace weft::broker
