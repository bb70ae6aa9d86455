// Blobs from peer to peer as a whole: one's BulkService asks, the other's LinkService gives, each on its own
// threads, told to owners on one loop.
#include <gtest/gtest.h>

#include "net/connection.h"
#include "peer/service/bulk_service.h"
#include "peer/service/link_service.h"
#include "security/identity.h"
#include "tests/links/blobs.h"

namespace weft::peer::test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(120);  // only a hang reaches it

struct Giver {
  explicit Giver(net::Loop& loop, std::optional<net::Shape> accepted_shape = {}) {
    LinkService::Options options;
    options.identity = identity.get();
    options.listen = net::Endpoint{"127.0.0.1", 0};
    options.accepted_shape = std::move(accepted_shape);
    service = std::move(*LinkService::start(
        loop, std::move(options),
        {.on_all_up = [this](uint64_t) { is_up = true; },
         .on_down = [](uint64_t, const plan::Seat&, const Error& error) { ADD_FAILURE() << error.message; },
         .on_tensor = [this](uint64_t, const plan::Seat&, const proto::TensorHeader&,
                             const dag::Tensor&) { order.emplace_back("tensor"); },
         .on_get_blob =
             [this](const proto::GetBlob& request) {
               ++asked;
               return shelf.find(request);
             }}));
  }
  std::shared_ptr<const proto::BlobSource> source() const {
    return std::make_shared<proto::BlobSource>(
        proto::BlobSource{.peer = identity->id(), .addresses = {net::to_string(*service->endpoint())}});
  }
  void open(uint32_t stage, const Giver& other, uint64_t rate) const {
    const auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {stage};
    assignment->copy_rate = rate;
    assignment->links = {{.seat = {1 - stage},
                          .peer = other.identity->id(),
                          .dials = stage == 0,
                          .addresses = {net::to_string(*other.service->endpoint())}}};
    service->open(1, assignment);
  }

  std::unique_ptr<security::Identity> identity = std::move(*security::Identity::generate());
  Shelf shelf;
  int asked = 0;
  bool is_up = false;
  std::vector<std::string> order;  // in which things came
  std::unique_ptr<LinkService> service;
};

struct Asker {
  explicit Asker(net::Loop& loop)
      : bulk(loop, {.identity = identity.get(), .broker = {"127.0.0.1", 1}, .broker_key = {}, .hello = {}}) {}
  struct Got {
    std::optional<Result<net::SharedBytes>> result;
    bool is(const Blob& blob) const {
      return result && *result && std::ranges::equal((*result)->bytes, blob);
    }
    std::optional<ErrorCode> error() const {
      return result && !*result ? std::optional(result->error().code) : std::nullopt;
    }
  };
  std::shared_ptr<Got> get(BulkService::Wanted wanted) {
    const auto got = std::make_shared<Got>();
    bulk.get(std::move(wanted), [got](Result<net::SharedBytes> bytes) {
      EXPECT_FALSE(got->result) << "told twice";
      got->result = std::move(bytes);
    });
    return got;
  }

  std::unique_ptr<security::Identity> identity = std::move(*security::Identity::generate());
  BulkService bulk;
};

class BlobsBetweenPeersTest : public ::testing::Test {
 protected:
  bool run_until(const std::function<bool()>& done) { return loop_.run_until(kPatience, done); }

  net::Loop loop_;
  Giver giver_{loop_};
};

TEST_F(BlobsBetweenPeersTest, EveryBlobComesAsItIs) {
  Asker asker(loop_);
  for (const size_t size :
       {size_t{0}, size_t{1}, size_t{1023}, storage::kWorthPacking, size_t{5} << 20 | 3}) {
    const Blob before = random_blob(size, size), blob = moved(before), other = random_blob(7, size + 1);
    const net::SharedBytes kept = shared(before), of_other_size = shared(other);
    const Digest sha256 = giver_.shelf.put(blob), base = storage::sha256(before);
    for (const bool has_base : {false, true}) {
      if (has_base) giver_.shelf.put(before);
      for (const uint64_t rate : {uint64_t{0}, uint64_t{1'000'000'000}}) {
        const auto plain =
            asker.get({.sha256 = sha256, .size = size, .rate = rate, .source = giver_.source()});
        const auto packed = asker.get({.sha256 = sha256,
                                       .size = size,
                                       .rate = rate,
                                       .source = giver_.source(),
                                       .base = {{base, kept.owner, kept.bytes}}});
        const auto differs = asker.get({.sha256 = sha256,
                                        .size = size,
                                        .rate = rate,
                                        .source = giver_.source(),
                                        .base = {{base, of_other_size.owner, of_other_size.bytes}}});
        for (const auto& got : {plain, packed, differs}) {
          ASSERT_TRUE(run_until([&] { return got->result.has_value(); }));
          EXPECT_TRUE(got->is(blob)) << size;
        }
      }
    }
  }
}

TEST_F(BlobsBetweenPeersTest, WhatThePeerDoesNotHaveIsNotFound) {
  Asker asker(loop_);
  const Digest sha256 = storage::sha256(Blob(1));
  for (int i = 0; i < 2; ++i) {
    const auto got = asker.get({.sha256 = sha256, .size = 1, .source = giver_.source()});
    ASSERT_TRUE(run_until([&] { return got->result.has_value(); }));
    EXPECT_EQ(got->error(), ErrorCode::NotFound);
  }
}

TEST_F(BlobsBetweenPeersTest, SeveralAskersOfManyBlobs) {
  std::vector<std::unique_ptr<Asker>> askers;
  for (int i = 0; i < 4; ++i) askers.push_back(std::make_unique<Asker>(loop_));
  std::vector<std::pair<std::shared_ptr<Asker::Got>, Blob>> wanted;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    const Blob before = random_blob(seed, 5'000 * seed), blob = moved(before);
    giver_.shelf.put(before);
    const Digest sha256 = giver_.shelf.put(blob);
    const net::SharedBytes kept = shared(before);
    for (const auto& asker : askers)
      wanted.emplace_back(asker->get({.sha256 = sha256,
                                      .size = blob.size(),
                                      .rate = asker == askers[0] ? 1'000'000'000u : 0u,
                                      .source = giver_.source(),
                                      .base = {{storage::sha256(before), kept.owner, kept.bytes}}}),
                          blob);
  }
  for (const auto& [got, blob] : wanted) {
    ASSERT_TRUE(run_until([&, &one = got] { return one->result.has_value(); }));
    EXPECT_TRUE(got->is(blob));
  }
}

TEST_F(BlobsBetweenPeersTest, AfterAResetNothingIsToldOfWhatWasAskedBefore) {
  Asker asker(loop_);
  const Blob large = random_blob(1, 24 << 20), small = random_blob(2, 100);
  const Digest sha256 = giver_.shelf.put(large);
  const auto under_way = asker.get({.sha256 = sha256, .size = large.size(), .source = giver_.source()});
  const auto waits = asker.get({.sha256 = sha256, .size = 1u << 30, .rate = 10, .source = giver_.source()});
  const auto waits_longer =
      asker.get({.sha256 = sha256, .size = 1u << 30, .rate = 10, .source = giver_.source()});
  ASSERT_TRUE(run_until([&] { return giver_.asked > 0; }));
  asker.bulk.reset();
  const auto next =
      asker.get({.sha256 = giver_.shelf.put(small), .size = small.size(), .source = giver_.source()});
  ASSERT_TRUE(run_until([&] { return next->result.has_value(); }));
  EXPECT_TRUE(next->is(small));
  for (const auto& got : {under_way, waits, waits_longer}) EXPECT_FALSE(got->result);
}

// A peer keeps to the rate itself, and what stands before an urgent request goes at once.
TEST_F(BlobsBetweenPeersTest, AskedForAgainWithoutARateItWaitsNoLonger) {
  Asker asker(loop_);
  const Blob first = random_blob(1, 100), second = random_blob(2, 100'000);
  const auto paced = asker.get(
      {.sha256 = giver_.shelf.put(first), .size = 1u << 30, .rate = 1000, .source = giver_.source()});
  const Digest sha256 = giver_.shelf.put(second);
  const auto waits =
      asker.get({.sha256 = sha256, .size = second.size(), .rate = 1000, .source = giver_.source()});
  const auto urgent = asker.get({.sha256 = sha256, .size = second.size(), .source = giver_.source()});
  ASSERT_TRUE(run_until([&] { return urgent->result && waits->result && paced->result; }));
  EXPECT_TRUE(paced->is(first));
  EXPECT_TRUE(waits->is(second));
  EXPECT_TRUE(urgent->is(second));
}

// Over a slow line that copies and tensors pass: with an equal part each, the copy would be there first.
TEST(BlobsBetweenPeers, TensorsGoBeforeACopy) {
  net::Loop loop;
  const auto uplink = net::AccessLine::make(1e6);
  Giver giver(loop, net::Shape{.uplink = uplink}), neighbour(loop);
  Asker asker(loop);
  neighbour.open(0, giver, 0);
  giver.open(1, neighbour, 800'000);
  const auto run_until = [&](const std::function<bool()>& done) { return loop.run_until(kPatience, done); };
  ASSERT_TRUE(run_until([&] { return giver.is_up && neighbour.is_up; }));
  const Blob copy = random_blob(1, 600'000);
  const dag::Tensor tensor({dag::DType::F32, {500'000}});
  const auto got = asker.get(
      {.sha256 = giver.shelf.put(copy), .size = copy.size(), .rate = 100'000'000, .source = giver.source()});
  giver.service->send(1, {0}, {.run = 1, .plan_version = 1, .step = 1, .spec = tensor.spec()}, tensor);
  ASSERT_TRUE(run_until([&] { return !neighbour.order.empty() || got->result; }));
  EXPECT_FALSE(got->result) << "the copy came before the tensor";
  ASSERT_TRUE(run_until([&] { return got->result.has_value(); }));
  EXPECT_TRUE(got->is(copy));
}

// ---- the door

TEST_F(BlobsBetweenPeersTest, WhoBeginsWithGarbageIsSentAway) {
  const auto identity = std::move(*security::Identity::generate());
  const auto closes_after = [&](std::vector<net::OutFrame> frames) {
    net::ConnectionPtr connection;
    bool is_closed = false;
    const auto attempt = net::connect(
        loop_, *giver_.service->endpoint(), {.identity = identity.get(), .expected = giver_.identity->id()},
        [&](Result<net::ConnectionPtr> result) { connection = std::move(*result); });
    if (!run_until([&] { return connection != nullptr; })) return false;
    connection->start(
        {.on_frame = [](const net::InFrame&) {}, .on_closed = [&](const Error&) { is_closed = true; }});
    for (net::OutFrame& frame : frames) connection->send(std::move(frame));
    return run_until([&] { return is_closed; });
  };
  const auto message = static_cast<uint8_t>(proto::FrameKind::Message);
  const proto::GetBlob get{.request = 1, .sha256 = giver_.shelf.put(random_blob(1, 100))};
  EXPECT_TRUE(closes_after({{.kind = message, .head = random_blob(3, 100)}}));
  EXPECT_TRUE(closes_after({{.kind = static_cast<uint8_t>(proto::FrameKind::Chunk), .head = Blob(20)}}));
  EXPECT_TRUE(closes_after({{.kind = message, .head = Blob(65 << 10)}}));
  EXPECT_TRUE(closes_after({message_frame(proto::BlobAnswer{.request = 1})}));
  EXPECT_TRUE(closes_after({message_frame(proto::LinkHello{.run = 9}), message_frame(get)}));
  EXPECT_TRUE(closes_after({message_frame(get), message_frame(proto::ProbeHello{})}));
}

TEST_F(BlobsBetweenPeersTest, WhoHasNothingToGiveSaysSo) {
  LinkService::Options options;
  options.identity = giver_.identity.get();
  options.listen = net::Endpoint{"127.0.0.1", 0};
  const auto service = std::move(*LinkService::start(
      loop_, std::move(options),
      {.on_all_up = [](uint64_t) {},
       .on_down = [](uint64_t, const plan::Seat&, const Error&) {},
       .on_tensor = [](uint64_t, const plan::Seat&, const proto::TensorHeader&, const dag::Tensor&) {}}));
  Asker asker(loop_);
  const auto got =
      asker.get({.sha256 = {},
                 .size = 1,
                 .source = std::make_shared<proto::BlobSource>(proto::BlobSource{
                     .peer = giver_.identity->id(), .addresses = {net::to_string(*service->endpoint())}})});
  ASSERT_TRUE(run_until([&] { return got->result.has_value(); }));
  EXPECT_EQ(got->error(), ErrorCode::NotFound);
}

}  // namespace
}  // namespace weft::peer::test
