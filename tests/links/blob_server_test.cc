// A peer that gives blobs, over real sockets of 127.0.0.1: to askers that read what comes, that do not, and
// that mean harm. Its clock is the test's.
#include "peer/service/blob_server.h"

#include <gtest/gtest.h>

#include "net/listener.h"
#include "proto/codec/codec.h"
#include "security/identity.h"
#include "tests/links/blobs.h"

namespace weft::peer::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPatience = seconds(120);  // only a hang reaches it

struct Asker {
  struct Came {
    std::optional<proto::BlobAnswer> answer;
    Blob stream;  // of its chunks
  };
  uint64_t ask(const Digest& sha256, uint64_t rate = 0, std::optional<Digest> base = {}) {
    connection->send(message_frame(proto::GetBlob{++asked, sha256, rate, base}));
    return asked;
  }
  void on_frame(const net::InFrame& frame) {
    if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
      const auto chunk = proto::decode_chunk(frame.payload.span());
      ASSERT_TRUE(chunk.has_value());
      ASSERT_TRUE(came[chunk->request].answer) << "the answer comes first";
      Blob& stream = came[chunk->request].stream;
      stream.insert(stream.end(), chunk->bytes.begin(), chunk->bytes.end());
      return;
    }
    const auto message = proto::decode(frame.payload.span());
    const auto* answer = message ? std::get_if<proto::BlobAnswer>(&*message) : nullptr;
    ASSERT_NE(answer, nullptr);
    came[answer->request].answer = *answer;
  }
  bool is_missing(uint64_t request) const {
    const auto at = came.find(request);
    return at != came.end() && at->second.answer && !at->second.answer->message.empty();
  }
  // What has come of it so far.
  Blob bytes(uint64_t request, const Blob& base = {}) const {
    const auto at = came.find(request);
    if (at == came.end() || !at->second.answer) return {};
    if (!at->second.answer->packed) return at->second.stream;
    Blob out;
    const auto on =
        at->second.answer->has_base ? std::span<const std::byte>(base) : std::span<const std::byte>();
    storage::Unpacker unpacker(at->second.answer->size, on);
    EXPECT_TRUE(unpacker.take(at->second.stream, [&](std::span<const std::byte> some) -> Status {
      out.insert(out.end(), some.begin(), some.end());
      return {};
    }));
    return out;
  }
  bool is_whole(uint64_t request) const {
    const auto at = came.find(request);
    if (at == came.end() || !at->second.answer) return false;
    if (!at->second.answer->packed) return at->second.stream.size() == at->second.answer->size;
    storage::PackedFraming framing(at->second.answer->size);
    EXPECT_TRUE(framing.take(at->second.stream));
    return framing.is_complete();
  }
  bool has(uint64_t request, const Blob& blob, const Blob& base = {}) const {
    const auto at = came.find(request);
    return at != came.end() && at->second.answer && bytes(request, base) == blob;
  }
  size_t stream_size(uint64_t request) const {
    const auto at = came.find(request);
    return at == came.end() ? 0 : at->second.stream.size();
  }

  net::ConnectionPtr connection;
  std::map<uint64_t, Came> came;
  uint64_t asked = 0;
  bool is_closed = false;
};

class BlobServerTest : public ::testing::Test {
 protected:
  BlobServerTest() {
    net::ListenOptions listen;
    listen.identity = giver_.get();
    listener_ = std::move(
        *net::Listener::open(loop_, {"127.0.0.1", 0}, listen,
                             [this](const net::ConnectionPtr& accepted) { on_accepted(accepted); }));
    begin({});
  }
  void begin(BlobServer::Options options) {
    options.loop = &loop_;
    options.now = [this] { return now_; };
    options.yields = [this] { return tensors_wait_; };
    options.on_giving = [this](const Digest& sha256, bool whole) {
      given_in_part_ += !whole;
      if (whole) given_.push_back(sha256);
    };
    options.look_up = [this](const proto::GetBlob& request, BlobServer::Found found) {
      ++looked_up_;
      const auto answer = [this, request, found = std::move(found)] { found(shelf_.find(request)); };
      if (answers_)
        loop_.post(answer);
      else
        held_back_.emplace_back(answer);
    };
    server_.emplace(std::move(options));
  }
  // As LinkService does it.
  void on_accepted(const net::ConnectionPtr& connection) {
    auto handlers = std::make_shared<net::Connection::Handlers>();
    handlers->on_frame = [this, handlers = handlers.get(),
                          weak = std::weak_ptr(connection)](const net::InFrame& frame) {
      const auto message = proto::decode(frame.payload.span());
      auto taken = server_->offer(weak.lock(), std::get<proto::GetBlob>(*message));
      if (taken)
        *handlers = std::move(*taken);
      else
        weak.lock()->close();
      std::erase(arrivals_, weak.lock());
    };
    handlers->on_closed = [](const Error&) {};
    arrivals_.push_back(connection);
    connection->start({.on_frame =
                           [handlers](net::InFrame frame) {
                             const auto on_frame = handlers->on_frame;
                             on_frame(std::move(frame));
                           },
                       .on_closed =
                           [handlers](const Error& error) {
                             const auto on_closed = handlers->on_closed;
                             on_closed(error);
                           },
                       .on_drained =
                           [handlers] {
                             const auto on_drained = handlers->on_drained;
                             if (on_drained) on_drained();
                           }});
  }
  std::unique_ptr<Asker> connect(bool reads = true) {
    auto asker = std::make_unique<Asker>();
    const auto attempt =
        net::connect(loop_, listener_->endpoint(), {.identity = peer_.get(), .expected = giver_->id()},
                     [&](Result<net::ConnectionPtr> result) { asker->connection = std::move(*result); });
    EXPECT_TRUE(run_until([&] { return asker->connection != nullptr; }));
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kMessageSizeMax;
    asker->connection->set_limits(limits);
    if (!reads) return asker;
    asker->connection->start(
        {.on_frame = [to = asker.get()](const net::InFrame& frame) { to->on_frame(frame); },
         .on_closed = [to = asker.get()](const Error&) { to->is_closed = true; }});
    return asker;
  }
  bool run_until(const std::function<bool()>& done) { return loop_.run_until(kPatience, done); }
  // The clock goes on, a second at a time.
  void pass_time() {
    timer_ = loop_.after(milliseconds(1), [this] {
      now_ += seconds(1);
      server_->on_tick();
      pass_time();
    });
  }
  void pass(int count) {
    for (int i = 0; i < count; ++i) {
      now_ += seconds(1);
      server_->on_tick();
    }
  }

  net::Loop loop_;
  std::unique_ptr<security::Identity> giver_ = std::move(*security::Identity::generate()),
                                      peer_ = std::move(*security::Identity::generate());
  Instant now_ = Instant{} + std::chrono::hours(1);
  Shelf shelf_;
  bool tensors_wait_ = false, answers_ = true;
  size_t looked_up_ = 0, given_in_part_ = 0;
  std::vector<Digest> given_;
  std::vector<std::function<void()>> held_back_;
  std::unique_ptr<net::Listener> listener_;
  std::vector<net::ConnectionPtr> arrivals_;
  std::unique_ptr<net::Loop::Timer> timer_;
  std::optional<BlobServer> server_;
};

// ---- what is given

TEST_F(BlobServerTest, GivesWhatIsThereInOrderAndPacksWhatIsLarge) {
  const auto asker = connect();
  std::vector<std::pair<uint64_t, Blob>> asked;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1023}, storage::kWorthPacking - 1,
                            storage::kWorthPacking, storage::kPackedUnit, size_t{5} << 20 | 17}) {
    const Blob blob = random_blob(size, size);
    asked.emplace_back(asker->ask(shelf_.put(blob)), blob);
  }
  ASSERT_TRUE(run_until([&] { return asker->is_whole(asked.back().first); }));
  for (const auto& [request, blob] : asked) {
    EXPECT_TRUE(asker->has(request, blob)) << blob.size();
    EXPECT_EQ(asker->came[request].answer->size, blob.size());
    EXPECT_EQ(asker->came[request].answer->packed, blob.size() >= storage::kWorthPacking);
    EXPECT_FALSE(asker->came[request].answer->has_base);
  }
  ASSERT_EQ(given_.size(), asked.size());
  for (size_t b = 0; b < asked.size(); ++b) EXPECT_EQ(given_[b], storage::sha256(asked[b].second));
  EXPECT_GE(given_in_part_, 5u) << "of the largest, as it goes";
}

TEST_F(BlobServerTest, PacksOnABaseThatBothHave) {
  const Blob before = random_blob(1, 2'500'001), blob = moved(before), other = random_blob(2, 2'500'000);
  const Digest sha256 = shelf_.put(blob), base = shelf_.put(before), of_other_size = shelf_.put(other);
  const auto asker = connect();
  const uint64_t with = asker->ask(sha256, 0, base), lacks = asker->ask(sha256, 0, storage::sha256(Blob(1))),
                 differs = asker->ask(sha256, 0, of_other_size);
  ASSERT_TRUE(run_until([&] { return asker->has(with, blob, before); }));
  EXPECT_TRUE(asker->came[with].answer->has_base);
  EXPECT_LT(asker->stream_size(with), blob.size() / 20);
  for (const uint64_t request : {lacks, differs}) {
    ASSERT_TRUE(run_until([&] { return asker->has(request, blob); }));
    EXPECT_FALSE(asker->came[request].answer->has_base);
  }
}

TEST_F(BlobServerTest, SeveralAskersAreServedAtOnce) {
  std::vector<Blob> blobs;
  for (uint64_t seed = 1; seed <= 6; ++seed) blobs.push_back(random_blob(seed, 400'000 * seed));
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 5; ++i) askers.push_back(connect());
  for (const Blob& blob : blobs)
    for (const auto& asker : askers) asker->ask(shelf_.put(blob), asker == askers[0] ? 0 : 1'000'000'000);
  pass_time();
  EXPECT_TRUE(run_until([&] {
    return std::all_of(askers.begin(), askers.end(),
                       [&](const auto& asker) { return asker->is_whole(blobs.size()); });
  }));
  for (const auto& asker : askers)
    for (size_t i = 0; i < blobs.size(); ++i) EXPECT_TRUE(asker->has(i + 1, blobs[i]));
}

TEST_F(BlobServerTest, WhoAsksForNothingThatIsHereIsSentAway) {
  const auto asker = connect();
  const uint64_t request = asker->ask(storage::sha256(Blob(1)));
  ASSERT_TRUE(run_until([&] { return asker->is_missing(request); }));
  EXPECT_EQ(asker->came[request].answer->code, ErrorCode::NotFound);
  pass(4);
  EXPECT_EQ(server_->connections(), 1u) << "another one may be here, and on its way to be asked for";
  pass(1);
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_TRUE(run_until([&] { return asker->is_closed; }));
}

TEST_F(BlobServerTest, AStrangerHasSoManyQuestions) {
  const auto asker = connect();
  for (int i = 0; i < 256; ++i) asker->ask(storage::sha256(Blob(1)));
  ASSERT_TRUE(run_until([&] { return asker->is_closed; }));
  EXPECT_TRUE(asker->is_missing(256)) << "it is told before";
}

TEST_F(BlobServerTest, StrangersMakeRoom) {
  const Blob blob = random_blob(1, 1000);
  const Digest sha256 = shelf_.put(blob), missing = storage::sha256(Blob(1));
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 33; ++i) {
    askers.push_back(connect());
    askers.back()->ask(i == 5 ? missing : sha256);
    ASSERT_TRUE(run_until([&] { return askers.back()->is_missing(1) || askers.back()->has(1, blob); }));
  }
  EXPECT_TRUE(run_until([&] { return askers[5]->is_closed; }));
  EXPECT_EQ(server_->connections(), 32u);
}

TEST_F(BlobServerTest, WhoWasGivenABlobMayAskForOthersThatAreNot) {
  const Blob blob = random_blob(1, 1000);
  const auto asker = connect();
  const uint64_t first = asker->ask(storage::sha256(Blob(1))), second = asker->ask(shelf_.put(blob)),
                 third = asker->ask(storage::sha256(Blob(2)));
  ASSERT_TRUE(run_until([&] { return asker->is_missing(third); }));
  EXPECT_TRUE(asker->is_missing(first));
  EXPECT_TRUE(asker->has(second, blob));
  EXPECT_EQ(server_->connections(), 1u);
}

// Memory of old copies is what those who wait must not cost.
TEST_F(BlobServerTest, BytesAreHeldWhileTheyAreSentAndNotBefore) {
  const Blob blob = random_blob(1, 3 << 20);
  const Digest sha256 = shelf_.put(blob), forgotten = shelf_.put(random_blob(2, 100'000));
  const auto held = shelf_.watch(sha256), waits = shelf_.watch(forgotten);
  answers_ = false;
  const auto asker = connect();
  const uint64_t first = asker->ask(sha256), second = asker->ask(forgotten);
  ASSERT_TRUE(run_until([&] { return held_back_.size() == 1; }));
  answers_ = true;
  held_back_[0]();
  held_back_.clear();
  shelf_.forget(sha256);
  shelf_.forget(forgotten);
  EXPECT_FALSE(held.expired());
  EXPECT_TRUE(waits.expired());
  ASSERT_TRUE(run_until([&] { return asker->is_missing(second); }));
  EXPECT_TRUE(asker->has(first, blob));
  EXPECT_TRUE(run_until([&] { return held.expired(); }));
}

TEST_F(BlobServerTest, MayEndWhileItPacks) {
  const auto asker = connect();
  asker->ask(shelf_.put(random_blob(1, 8 << 20)));
  ASSERT_TRUE(run_until([&] { return !asker->came.empty(); }));
  server_.reset();
  EXPECT_TRUE(run_until([&] { return asker->is_closed; }));
}

// ---- the pace, on a clock that stands still: bursts of a hundredth of a second, of the 100 ms before and 20
// ms ahead

constexpr uint64_t kRate = 10'000'000;
constexpr size_t kBurst = kRate / 100, kBurstsMax = 13;

TEST_F(BlobServerTest, WhatMayWaitGoesAtItsRateAndWhatIsUrgentAtOnce) {
  const Blob copy = random_blob(1, 4 << 20), urgent = random_blob(2, 6 << 20);
  const auto slow = connect(), fast = connect();
  const uint64_t paced = slow->ask(shelf_.put(copy), kRate);
  ASSERT_TRUE(run_until([&] { return slow->stream_size(paced) >= 3 * kBurst; }));
  const uint64_t request = fast->ask(shelf_.put(urgent));
  ASSERT_TRUE(run_until([&] { return fast->is_whole(request); }));
  EXPECT_TRUE(fast->has(request, urgent));
  EXPECT_LE(slow->stream_size(paced), kBurstsMax * kBurst);
  pass_time();
  EXPECT_TRUE(run_until([&] { return slow->is_whole(paced); }));
  EXPECT_TRUE(slow->has(paced, copy));
}

TEST_F(BlobServerTest, CopiesGiveWayToTensors) {
  const Blob copy = random_blob(1, 4 << 20), urgent = random_blob(2, 6 << 20);
  tensors_wait_ = true;
  const auto slow = connect(), fast = connect();
  const uint64_t paced = slow->ask(shelf_.put(copy), kRate);
  ASSERT_TRUE(run_until([&] { return slow->stream_size(paced) > 0; }));
  const uint64_t request = fast->ask(shelf_.put(urgent));
  ASSERT_TRUE(run_until([&] { return fast->is_whole(request); }));
  EXPECT_EQ(slow->stream_size(paced), kBurst)
      << "one, of which a twentieth of the rate has its fill for long";
  tensors_wait_ = false;
  EXPECT_TRUE(run_until([&] { return slow->stream_size(paced) >= 2 * kBurst; })) << "they have gone";
}

TEST_F(BlobServerTest, AStageTakesNoMoreOfTheUplinkThanItMay) {
  server_->set_rate(kRate / 10);
  const Blob copy = random_blob(1, 4 << 20), urgent = random_blob(2, 6 << 20);
  const auto slow = connect(), fast = connect();
  const uint64_t paced = slow->ask(shelf_.put(copy), kRate);
  ASSERT_TRUE(run_until([&] { return slow->stream_size(paced) >= 3 * kBurst / 10; }));
  const uint64_t request = fast->ask(shelf_.put(urgent));
  ASSERT_TRUE(run_until([&] { return fast->is_whole(request); }));
  EXPECT_LE(slow->stream_size(paced), kBurstsMax * kBurst / 10);
}

TEST_F(BlobServerTest, WhatStandsBeforeAnUrgentRequestWaitsNoLonger) {
  const Blob copy = random_blob(1, 4 << 20), urgent = random_blob(2, 1 << 20);
  const auto asker = connect();
  const uint64_t paced = asker->ask(shelf_.put(copy), kRate);
  ASSERT_TRUE(run_until([&] { return asker->stream_size(paced) > 0; }));
  const uint64_t request = asker->ask(shelf_.put(urgent));
  ASSERT_TRUE(run_until([&] { return asker->is_whole(request); }));
  EXPECT_TRUE(asker->has(paced, copy));
  EXPECT_TRUE(asker->has(request, urgent));
}

TEST_F(BlobServerTest, WhoAsksForASlowPaceHoldsUpNobody) {
  const Blob copy = random_blob(1, 1 << 20);
  const auto slow = connect(), fast = connect();
  const uint64_t crawls = slow->ask(shelf_.put(copy), 1);
  ASSERT_TRUE(run_until([&] { return slow->stream_size(crawls) > 0; }));
  const uint64_t request = fast->ask(shelf_.put(copy), 100 * kRate);
  ASSERT_TRUE(run_until([&] { return fast->is_whole(request); }));
  EXPECT_LT(slow->stream_size(crawls), copy.size() / 10);
}

TEST_F(BlobServerTest, WhoTakesNothingHoldsUpNobody) {
  BlobServer::Options options;
  options.stall_deadline = std::chrono::hours(1000);
  begin(std::move(options));
  const Blob copy = random_blob(1, 32 << 20);
  const auto stuck = connect(/*reads=*/false), other = connect();
  stuck->ask(shelf_.put(copy), 100 * kRate);
  ASSERT_TRUE(run_until([&] { return server_->connections() == 1; }));
  const uint64_t request = other->ask(shelf_.put(copy), 10 * kRate);
  pass_time();
  ASSERT_TRUE(run_until([&] { return other->is_whole(request); }));
  EXPECT_EQ(server_->connections(), 2u);
}

// ---- bounds

TEST_F(BlobServerTest, WhoAsksForTenThousandBlobsAtOnceIsSentAway) {
  answers_ = false;
  const Digest sha256 = shelf_.put(random_blob(1, 1000));
  const auto asker = connect();
  for (int i = 0; i < 10'000; ++i) asker->ask(sha256);
  ASSERT_TRUE(run_until([&] { return asker->is_closed; }));
  EXPECT_EQ(looked_up_, 1u) << "one at a time";
  held_back_[0]();  // for somebody who has gone
  EXPECT_TRUE(asker->came.empty());
}

TEST_F(BlobServerTest, RequestsUpToTheBoundMayWait) {
  answers_ = false;
  const Blob blob = random_blob(1, 1000);
  const Digest sha256 = shelf_.put(blob);
  const auto asker = connect();
  for (int i = 0; i < 257; ++i) asker->ask(sha256);  // one is looked up
  ASSERT_TRUE(run_until([&] { return held_back_.size() == 1; }));
  answers_ = true;
  held_back_[0]();
  EXPECT_TRUE(run_until([&] { return asker->has(257, blob); }));
}

TEST_F(BlobServerTest, WhoNeverReadsGetsNoMoreThanAFewMebibytesAndIsSentAway) {
  const auto asker = connect(/*reads=*/false);
  for (uint64_t seed = 0; seed < 24; ++seed) asker->ask(shelf_.put(random_blob(seed, 2 << 20)));
  ASSERT_TRUE(run_until([&] { return looked_up_ > 0; }));
  pass_time();
  ASSERT_TRUE(run_until([&] { return server_->connections() == 0; }));
  EXPECT_LT(looked_up_, 12u) << "what the sockets between the two hold, and two mebibytes";
}

TEST_F(BlobServerTest, WhoAsksForNothingForAWhileIsSentAway) {
  const Blob blob = random_blob(1, 1000);
  const auto asker = connect();
  const uint64_t request = asker->ask(shelf_.put(blob));
  ASSERT_TRUE(run_until([&] { return asker->has(request, blob); }));
  server_->on_tick();
  pass(119);
  EXPECT_EQ(server_->connections(), 1u);
  pass(1);
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_TRUE(run_until([&] { return asker->is_closed; }));
}

TEST_F(BlobServerTest, WhoWaitsForTheOwnerIsNotSentAway) {
  answers_ = false;
  const Blob blob = random_blob(1, 1000);
  const auto asker = connect();
  const uint64_t request = asker->ask(shelf_.put(blob));
  ASSERT_TRUE(run_until([&] { return held_back_.size() == 1; }));
  pass(1000);
  EXPECT_EQ(server_->connections(), 1u);
  held_back_[0]();
  EXPECT_TRUE(run_until([&] { return asker->has(request, blob); }));
}

TEST_F(BlobServerTest, TakesAsManyConnectionsAsItMay) {
  answers_ = false;
  const Digest sha256 = shelf_.put(random_blob(1, 1000));
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 33; ++i) {
    askers.push_back(connect());
    askers.back()->ask(sha256);
    ASSERT_TRUE(run_until([&] { return looked_up_ == askers.size() || askers.back()->is_closed; }));
  }
  EXPECT_EQ(server_->connections(), 32u);
  EXPECT_TRUE(askers.back()->is_closed);
  EXPECT_FALSE(askers.front()->is_closed);
}

TEST_F(BlobServerTest, WhoSaysAnythingElseIsSentAway) {
  const Digest sha256 = shelf_.put(random_blob(1, 1000));
  const auto kind = [](proto::FrameKind of) { return static_cast<uint8_t>(of); };
  const std::vector<net::OutFrame> frames{
      message_frame(proto::LinkHello{.run = 1}),
      message_frame(proto::PutBlob{.request = 9, .sha256 = sha256, .size = 10}),
      {.kind = kind(proto::FrameKind::Chunk), .head = proto::encode_chunk_head(1)},
      {.kind = kind(proto::FrameKind::Message), .head = random_blob(3, 100)},
      {.kind = kind(proto::FrameKind::Message), .head = Blob(8 << 10)},
      {.kind = 77, .head = {}}};
  for (const net::OutFrame& frame : frames) {
    const auto asker = connect();
    asker->ask(sha256);
    asker->connection->send(frame);
    EXPECT_TRUE(run_until([&] { return asker->is_closed && server_->connections() == 0; }));
  }
}

}  // namespace
}  // namespace weft::peer::test
