// Blobs and microbatches that come in pieces, as a connection gives them: placed, or collected.
#include "peer/service/bulk.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "base/rng.h"
#include "storage/blob_store.h"

namespace weft::peer {
namespace {

using Blob = std::vector<std::byte>;

Blob random_bytes(uint64_t seed, size_t size) {
  Rng rng(seed, 0);
  Blob bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(rng.below(256));
  return bytes;
}

// What net does with a frame: the receiver is asked by its head, and the rest goes where it says.
net::InFrame received(BulkTransfers& transfers, proto::FrameKind kind, const Blob& head,
                      std::span<const std::byte> rest) {
  Blob payload = head;
  payload.insert(payload.end(), rest.begin(), rest.end());
  net::InFrame frame;
  frame.kind = static_cast<uint8_t>(kind);
  const auto placed = transfers.place(
      frame.kind, payload.size(), std::span(payload).first(std::min(payload.size(), net::kFrameHeadSize)));
  EXPECT_TRUE(placed.has_value());
  const size_t head_size = placed->body ? placed->head_size : payload.size();
  frame.payload = net::Buffer(head_size);
  std::memcpy(frame.payload.span().data(), payload.data(), head_size);
  frame.body = placed->body;
  frame.body_size = payload.size() - head_size;
  if (frame.body) std::memcpy(frame.body.get(), payload.data() + head_size, frame.body_size);
  return frame;
}

class BulkTest : public ::testing::Test {
 protected:
  void get(const Blob& expected, uint64_t size_max) {
    transfers_.get(storage::sha256(expected), size_max,
                   [this](Result<Blob> bytes) { got_ = std::move(bytes); });
  }
  Result<bool> answer(uint64_t size) {
    return transfers_.on_message(proto::BlobAnswer{.request = 1, .size = size});
  }
  Status chunk(std::span<const std::byte> bytes, bool is_placed) {
    const Blob head = proto::encode_chunk_head(1);
    if (!is_placed) return transfers_.on_chunk({.request = 1, .bytes = bytes});
    const net::InFrame frame = received(transfers_, proto::FrameKind::Chunk, head, bytes);
    return transfers_.on_chunk(*proto::decode_chunk(frame.payload.span()), frame.body_size);
  }

  bool places(proto::FrameKind kind, const Blob& head, size_t rest) {
    return transfers_.place(static_cast<uint8_t>(kind), head.size() + rest, head).has_value();
  }

  std::optional<Result<Blob>> got_;  // first: transfers that go tell it
  BulkTransfers transfers_{[](const net::OutFrame&) {}};
};

TEST_F(BulkTest, ABlobIsWholeHoweverItsPiecesCome) {
  const Blob blob = random_bytes(1, 700'000);
  get(blob, blob.size());
  ASSERT_TRUE(answer(blob.size()));
  for (size_t at = 0, i = 0; at < blob.size(); at += 100'000, ++i)
    ASSERT_TRUE(chunk(std::span(blob).subspan(at, 100'000), i % 3 != 0));
  ASSERT_TRUE(got_ && *got_);
  EXPECT_EQ(**got_, blob);
}

TEST_F(BulkTest, ABlobThatIsTakenAsItComesIsHeldByNobody) {
  const Blob blob = random_bytes(1, 700'000);
  Blob taken;
  BulkTransfers::GetOptions options;
  options.sink = [&](std::span<const std::byte> bytes) -> Status {
    taken.insert(taken.end(), bytes.begin(), bytes.end());
    return taken.size() > 1'000'000 ? fail(ErrorCode::ResourceExhausted, "full") : Status{};
  };
  const auto get_again = [&](uint64_t request) {
    got_.reset();
    transfers_.get(storage::sha256(blob), blob.size(), options,
                   [this](Result<Blob> bytes) { got_ = std::move(bytes); });
    return transfers_.on_message(proto::BlobAnswer{.request = request, .size = blob.size()});
  };
  ASSERT_TRUE(get_again(1));
  for (size_t at = 0; at < blob.size(); at += 100'000)
    ASSERT_TRUE(chunk(std::span(blob).subspan(at, 100'000), true));
  ASSERT_TRUE(got_ && *got_);
  EXPECT_TRUE((*got_)->empty());
  EXPECT_EQ(taken, blob);
  ASSERT_TRUE(get_again(2));
  for (size_t at = 0; at < blob.size(); at += 100'000)
    ASSERT_TRUE(transfers_.on_chunk({.request = 2, .bytes = std::span(blob).subspan(at, 100'000)}));
  ASSERT_TRUE(got_ && !*got_);
  EXPECT_EQ(got_->error().code, ErrorCode::ResourceExhausted);
}

TEST_F(BulkTest, OtherBytesThanTheHashSaysAreCorrupted) {
  const Blob blob = random_bytes(1, 1000);
  get(blob, blob.size());
  ASSERT_TRUE(answer(blob.size()));
  ASSERT_TRUE(chunk(random_bytes(2, 1000), true));
  ASSERT_TRUE(got_ && !*got_);
  EXPECT_EQ(got_->error().code, ErrorCode::Corrupted);
}

TEST_F(BulkTest, MoreThanWasPromisedIsRefused) {
  const Blob blob = random_bytes(1, 1000);
  get(blob, blob.size());
  ASSERT_TRUE(answer(blob.size()));
  ASSERT_TRUE(chunk(std::span(blob).first(600), true));
  EXPECT_FALSE(answer(100)) << "a second answer, of less than has come";
  EXPECT_FALSE(chunk(std::span(blob).first(600), true));
  EXPECT_FALSE(got_);
}

TEST_F(BulkTest, ABlobLargerThanExpectedTakesNoMemory) {
  get(random_bytes(1, 10), 1000);
  ASSERT_TRUE(answer(uint64_t{1} << 50));
  ASSERT_TRUE(got_ && !*got_);
  EXPECT_EQ(got_->error().code, ErrorCode::ResourceExhausted);
}

TEST_F(BulkTest, WhatThePackedBytesOfAPeerStandForIsWholeHoweverTheyCome) {
  const Blob blob = random_bytes(1, 2'500'001);
  transfers_.get(storage::sha256(blob), blob.size(), {.rate = 7, .is_from_peer = true},
                 [this](Result<Blob> bytes) { got_ = std::move(bytes); });
  ASSERT_TRUE(transfers_.on_message(proto::BlobAnswer{.request = 1, .size = blob.size(), .packed = true}));
  storage::Packer packer;
  for (size_t at = 0; at < blob.size(); at += storage::kPackedUnit) {
    const auto unit =
        packer.pack(std::span(blob).subspan(at, std::min(storage::kPackedUnit, blob.size() - at)), {});
    for (size_t from = 0, i = 0; from < unit.size(); from += 300'000, ++i)
      ASSERT_TRUE(
          chunk(std::span(unit).subspan(from, std::min<size_t>(300'000, unit.size() - from)), i % 2 == 0));
  }
  ASSERT_TRUE(got_ && *got_);
  EXPECT_EQ(**got_, blob);
}

TEST_F(BulkTest, WhatABrokerGivesIsNotPacked) {
  get(random_bytes(1, 100'000), 100'000);
  EXPECT_FALSE(transfers_.on_message(proto::BlobAnswer{.request = 1, .size = 100'000, .packed = true}));
  ASSERT_TRUE(got_ && !*got_);
  EXPECT_EQ(got_->error().code, ErrorCode::Corrupted);
}

// A few numbers moved.
Blob moved(Blob blob) {
  for (size_t i = 0; i < blob.size(); i += 1000) blob[i] ^= std::byte{1};
  return blob;
}

// What a put sends: its announcement, and the bytes of its chunks.
struct Sent {
  proto::PutBlob put;
  Blob stream;
};

class PutTest : public ::testing::Test {
 protected:
  void put(const Blob& blob, std::optional<BulkTransfers::PutOptions::Base> base, bool packs = true) {
    transfers_.put(storage::sha256(blob), shared(blob), {.packs = packs, .base = std::move(base)},
                   [this](const Status& status) { stored_ = status; });
  }
  static net::SharedBytes shared(const Blob& blob) {
    const auto kept = std::make_shared<const Blob>(blob);
    return {kept, *kept};
  }
  BulkTransfers::PutOptions::Base base(const Blob& blob) {
    kept_ = shared(blob);
    return {storage::sha256(blob), kept_.owner, kept_.bytes};
  }
  void answer(std::optional<ErrorCode> error) {
    proto::BlobAnswer answer{.request = sent_.back().put.request};
    if (error) answer.code = *error, answer.message = "no";
    ASSERT_TRUE(transfers_.on_message(answer));
  }
  // As the broker does it.
  static Blob unpacked(const Sent& sent, const Blob& base) {
    Blob out;
    storage::Unpacker unpacker(sent.put.size, base);
    EXPECT_TRUE(unpacker.take(sent.stream, [&](std::span<const std::byte> bytes) -> Status {
      out.insert(out.end(), bytes.begin(), bytes.end());
      return {};
    }));
    EXPECT_TRUE(unpacker.is_complete());
    return out;
  }

  net::SharedBytes kept_;  // the base, as long as somebody else wants it
  std::vector<Sent> sent_;
  std::optional<Status> stored_;
  BulkTransfers transfers_{[this](const net::OutFrame& frame) {
    if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message))
      return sent_.push_back({std::get<proto::PutBlob>(*proto::decode(frame.head)), {}});
    EXPECT_EQ(proto::decode_chunk(frame.head)->request, sent_.back().put.request);
    sent_.back().stream.insert(sent_.back().stream.end(), frame.body.bytes.begin(), frame.body.bytes.end());
  }};
};

TEST_F(PutTest, ABlobIsPackedOnItsBase) {
  const Blob before = random_bytes(1, 2'500'001), blob = moved(before);
  put(blob, base(before));
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_TRUE(sent_[0].put.packed);
  EXPECT_EQ(sent_[0].put.base, storage::sha256(before));
  EXPECT_LT(sent_[0].stream.size(), blob.size() / 20);
  EXPECT_EQ(unpacked(sent_[0], before), blob);
  EXPECT_FALSE(stored_);
  answer({});
  EXPECT_TRUE(stored_ && *stored_);
}

TEST_F(PutTest, WhereTheBaseIsGoneItIsPutAgainWithout) {
  const Blob before = random_bytes(1, 100'000), blob = random_bytes(2, 100'000);
  for (const ErrorCode code : {ErrorCode::NotFound, ErrorCode::Corrupted}) {
    sent_.clear();
    stored_.reset();
    put(blob, base(before));
    answer(code);
    ASSERT_EQ(sent_.size(), 2u);
    EXPECT_FALSE(stored_);
    EXPECT_FALSE(sent_[1].put.base);
    EXPECT_EQ(unpacked(sent_[1], {}), blob);
    answer(code);
    ASSERT_TRUE(stored_ && !*stored_) << "without a base it is told";
    EXPECT_EQ(sent_.size(), 2u);
  }
}

// A base is nobody's reason to keep an old copy: there may be no room for it beside the new ones.
TEST_F(PutTest, ABaseThatIsForgottenBeforeThePutBeginsIsNotUsed) {
  const Blob before = random_bytes(1, 9 << 20), blob = moved(before), next = moved(blob);
  put(blob, base(before));
  const std::weak_ptr<const void> held = kept_.owner;
  kept_ = {};
  EXPECT_TRUE(held.expired()) << "all of it is packed";
  const auto of_next = base(blob);
  put(next, of_next);  // waits for the answer to the first
  ASSERT_EQ(sent_.size(), 1u);
  kept_ = {};
  answer({});
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_FALSE(sent_[1].put.base);
  EXPECT_EQ(unpacked(sent_[1], {}), next);
}

// A copy of a state that was given up: what waits for its turn is not kept for it.
TEST_F(PutTest, WhatNobodyHoldsAnyMoreWhenItsTurnComesIsNotPut) {
  const Blob first = random_bytes(1, 9 << 20), second = random_bytes(2, 100'000),
             third = random_bytes(3, 100);
  const BulkTransfers::PutOptions may_lapse{.may_lapse = true};
  std::vector<std::pair<int, bool>> ended;
  net::SharedBytes held[] = {shared(first), shared(second), shared(third)};
  for (int b = 0; b < 3; ++b)
    transfers_.put(storage::sha256(b == 0   ? first
                                   : b == 1 ? second
                                            : third),
                   held[b], may_lapse,
                   [&ended, b](const Status& status) { ended.emplace_back(b, status.has_value()); });
  ASSERT_EQ(sent_.size(), 1u) << "the others wait for its answer";
  held[0] = held[1] = {};
  answer({});
  ASSERT_EQ(sent_.size(), 2u);
  EXPECT_EQ(sent_[0].stream, first) << "what has begun is held";
  EXPECT_EQ(sent_[1].stream, third);
  answer({});
  EXPECT_EQ(ended, (std::vector<std::pair<int, bool>>{{1, false}, {0, true}, {2, true}}));
}

// What waits in the connection has not left; it is of the newest.
TEST_F(PutTest, HowMuchHasLeftIsToldOfLargePutsUnderWay) {
  const Blob first = random_bytes(1, 2'000'000), second = random_bytes(2, 1'000'000),
             small = random_bytes(3, 1000);
  size_t waiting = 3'000'000 + 1000;
  std::map<size_t, uint64_t> sent;  // by size
  const auto answer_nothing = [](const Status&) {};
  BulkTransfers transfers([](const net::OutFrame&) {}, {.unsent = [&] { return waiting; }});
  EXPECT_FALSE(transfers.tell_sent());
  for (const Blob* blob : {&first, &second, &small})
    transfers.put(storage::sha256(*blob), shared(*blob),
                  {.on_sent = [&, size = blob->size()](uint64_t bytes) { sent[size] = bytes; }},
                  answer_nothing);
  const auto told = [&](size_t now) {
    waiting = now;
    EXPECT_TRUE(transfers.tell_sent());
    EXPECT_FALSE(sent.contains(small.size()));
    return std::pair(sent[first.size()], sent[second.size()]);
  };
  using Pair = std::pair<uint64_t, uint64_t>;
  EXPECT_EQ(told(3'001'000), (Pair{0, 0}));
  EXPECT_EQ(told(1'501'000), (Pair{1'500'000, 0}));
  EXPECT_EQ(told(251'000), (Pair{2'000'000, 750'000}));
  EXPECT_EQ(told(0), (Pair{2'000'000, 1'000'000}));
  EXPECT_EQ(told(90'000'000), (Pair{0, 0})) << "other things wait, too";
  transfers.fail_all({ErrorCode::Unavailable, "gone"});
  EXPECT_FALSE(transfers.tell_sent());
}

TEST_F(PutTest, OfPackedBytesAsManyHaveLeftAsTheirShare) {
  const Blob before = random_bytes(1, 2'500'001), blob = moved(before);
  uint64_t sent = 0;
  size_t given = 0, waiting = 0;
  BulkTransfers transfers([&](const net::OutFrame& frame) { given += frame.body.bytes.size(); },
                          {.unsent = [&] { return waiting; }});
  transfers.put(storage::sha256(blob), shared(blob),
                {.packs = true, .on_sent = [&](uint64_t bytes) { sent = bytes; }, .base = base(before)},
                [](const Status&) {});
  waiting = given / 2;
  transfers.tell_sent();
  EXPECT_LT(given, blob.size() / 20);
  EXPECT_NEAR(static_cast<double>(sent), static_cast<double>(blob.size()) / 2,
              static_cast<double>(blob.size()) / 1000);
  waiting = 0;
  transfers.tell_sent();
  EXPECT_EQ(sent, blob.size());
}

TEST_F(PutTest, SmallBlobsAndBasesOfAnotherLengthArePutAsTheyAre) {
  const Blob small = random_bytes(1, storage::kWorthPacking - 1), large = random_bytes(1, 100'000);
  put(small, base(small));
  EXPECT_FALSE(sent_[0].put.packed || sent_[0].put.base);
  EXPECT_EQ(sent_[0].stream, small);
  answer({});
  put(large, base(small));
  EXPECT_TRUE(sent_[1].put.packed && !sent_[1].put.base);
  answer({});
  put(large, base(large), /*packs=*/false);
  EXPECT_FALSE(sent_[2].put.packed || sent_[2].put.base);
  EXPECT_EQ(sent_[2].stream, large);
}

TEST_F(BulkTest, AMicrobatchKeepsTheMemoryThatItsTensorsCameInto) {
  std::optional<Result<BulkTransfers::MicrobatchData>> came;
  transfers_.get_microbatch({.inputs = {"x"}}, {},
                            [&](Result<BulkTransfers::MicrobatchData> result) { came = std::move(result); });
  const dag::Tensor tensor = dag::make_tensor({3}, std::vector<float>{1, 2, 3});
  const Blob head = proto::encode_header({.edge = 0, .spec = tensor.spec()});
  EXPECT_FALSE(places(proto::FrameKind::Tensor, head, tensor.bytes().size())) << "nobody asked yet";
  ASSERT_TRUE(transfers_.on_message(proto::MicrobatchAnswer{.request = 1, .sample_position = 8}));
  const net::InFrame frame = received(transfers_, proto::FrameKind::Tensor, head, tensor.bytes());
  auto read = tensor_of(frame);
  ASSERT_TRUE(read);
  ASSERT_TRUE(transfers_.on_tensor(std::move(*read)));
  ASSERT_TRUE(came && *came);
  const dag::Tensor& x = (*came)->tensors.at("x");
  EXPECT_EQ(reinterpret_cast<const void*>(x.bytes().data()), frame.body.get());
  EXPECT_TRUE(std::ranges::equal(x.bytes(), tensor.bytes()));
}

// What comes from a broker that lies takes no more memory than what was asked for.
TEST_F(BulkTest, NoFrameIsLargerThanItMayBe) {
  transfers_.get_microbatch({.inputs = {"x", "y"}}, {{dag::DType::F32, {3}}, {dag::DType::F32, {2}}},
                            [](const Result<BulkTransfers::MicrobatchData>&) {});
  ASSERT_TRUE(transfers_.on_message(proto::MicrobatchAnswer{.request = 1}));
  const auto head = [](uint32_t edge, int64_t elements) {
    return proto::encode_header({.edge = edge, .spec = {dag::DType::F32, {elements}}});
  };
  EXPECT_TRUE(places(proto::FrameKind::Tensor, head(0, 3), 12));
  EXPECT_FALSE(places(proto::FrameKind::Tensor, head(0, 4), 16));
  EXPECT_FALSE(places(proto::FrameKind::Tensor, head(1, 3), 12));
  EXPECT_FALSE(places(proto::FrameKind::Tensor, head(2, 1), 4)) << "no such input";
  EXPECT_TRUE(places(proto::FrameKind::Message, {}, proto::kMessageSizeMax));
  EXPECT_FALSE(places(proto::FrameKind::Message, {}, proto::kMessageSizeMax + 1));
  const Blob chunk = proto::encode_chunk_head(1);
  EXPECT_TRUE(places(proto::FrameKind::Chunk, chunk, proto::kChunkSizeMax));
  EXPECT_FALSE(places(proto::FrameKind::Chunk, chunk, 2 * proto::kChunkSizeMax));
}

}  // namespace
}  // namespace weft::peer
