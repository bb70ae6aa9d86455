// Microbatches of data that are asked for, read and sent, by a desk whose reader is the test.
#include "broker/service/feed_desk.h"

#include <gtest/gtest.h>

#include <deque>

#include "proto/codec/codec.h"
#include "tests/gate/fake_connections.h"

namespace weft::broker {
namespace {

using proto::GetMicrobatch;
using proto::MicrobatchAnswer;
using proto::Secret;

class FeedDeskTest : public ::testing::Test, protected FeedDesk::Outside {
 protected:
  FeedDeskTest() {
    line_.on_refused = [this](ConnectionId which) { desk_.end(which); };
  }
  void read(ConnectionId whose, const GetMicrobatch& request) override { reads_.push_back({whose, request}); }

  void get(ConnectionId whose, uint64_t request, proto::JobNumber job = 7, const Secret& key = kKey) {
    desk_.get(whose, {.request = request, .run = job, .data_key = key, .step = 1});
  }
  // The reader is done with the first that it was given.
  void done(const Result<Feeder::Fed>& read = Feeder::Fed{}) {
    const auto [whose, request] = reads_.front();
    reads_.pop_front();
    desk_.on_read(whose, request, read);
  }
  // Requests that were answered since the last time; those that were denied apart.
  std::vector<uint64_t> answered(ConnectionId whose, bool denied = false) {
    std::vector<uint64_t> requests;
    for (const MicrobatchAnswer& answer : line_.take<MicrobatchAnswer>(whose)) {
      EXPECT_EQ(answer.message.empty(), !denied) << answer.message;
      requests.push_back(answer.request);
    }
    return requests;
  }
  using Requests = std::vector<uint64_t>;

  static constexpr Secret kKey{1}, kOtherKey{2};
  test_desks::FakeConnections line_;
  FeedDesk desk_{line_, *this};
  std::deque<std::pair<ConnectionId, GetMicrobatch>> reads_;
};

TEST_F(FeedDeskTest, ReadsOneAfterTheOtherAsTheyAreTaken) {
  desk_.open(7, kKey);
  for (const uint64_t request : {1, 2, 3}) get(1, request);
  get(2, 4);
  ASSERT_EQ(reads_.size(), 2u) << "one of each connection";
  done(
      Feeder::Fed{.sample_position = 40, .valid_count = 3, .tensors = {dag::Tensor({dag::DType::F32, {2}})}});
  const auto first = line_.take<MicrobatchAnswer>(1);
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].request, 1u);
  EXPECT_EQ(first[0].sample_position, 40u);
  EXPECT_EQ(first[0].valid_count, 3u);
  ASSERT_EQ(line_.frames[1].size(), 1u);
  EXPECT_EQ(line_.frames[1][0].kind, static_cast<uint8_t>(proto::FrameKind::Tensor));
  EXPECT_EQ(line_.frames[1][0].body.bytes.size(), 8u);
  done();
  EXPECT_EQ(answered(2), Requests{4});
  line_.queued[1] = kQueuedMax;
  done();
  EXPECT_EQ(answered(1), Requests{2});
  EXPECT_TRUE(reads_.empty()) << "it has not taken what it was sent";
  line_.queued[1] = 0;
  desk_.go_on(1);
  done();
  EXPECT_EQ(answered(1), Requests{3});
}

TEST_F(FeedDeskTest, OnlyItsKeyOpensAFeed) {
  get(1, 1);
  EXPECT_EQ(answered(1, true), Requests{1}) << "no such feed";
  desk_.open(7, kKey);
  get(1, 2, 7, kOtherKey);
  EXPECT_EQ(answered(1, true), Requests{2});
  desk_.open(7, kOtherKey);  // the run was placed again
  get(1, 3, 7, kKey);
  EXPECT_EQ(answered(1, true), Requests{3});
  EXPECT_TRUE(reads_.empty());
  get(1, 4, 7, kOtherKey);
  EXPECT_EQ(reads_.size(), 1u);
}

TEST_F(FeedDeskTest, WhatIsAskedForBeforeItIsOpenWaits) {
  desk_.expect(7, kKey);
  for (const uint64_t request : {1, 2}) get(1, request);
  get(2, 3);
  EXPECT_TRUE(reads_.empty());
  EXPECT_TRUE(line_.sent[1].empty());
  desk_.end(2);
  desk_.open(7, kKey);
  ASSERT_EQ(reads_.size(), 1u) << "who has gone is not read for";
  done();
  done();
  EXPECT_EQ(answered(1), (Requests{1, 2}));
  desk_.open(7, kKey);
  EXPECT_TRUE(reads_.empty()) << "each once";
}

// What waits for a feed that will not come is told so, once.
TEST_F(FeedDeskTest, TheRestOfAFeedThatClosesIsToldOnce) {
  desk_.expect(7, kKey);
  desk_.expect(8, kKey);
  for (const uint64_t request : {1, 2}) get(1, request);
  get(2, 3);
  get(1, 4, 8);
  get(3, 5);
  desk_.end(3);
  desk_.close(7);
  EXPECT_EQ(answered(1, true), (Requests{1, 2}));
  EXPECT_EQ(answered(2, true), Requests{3});
  EXPECT_TRUE(line_.sent[3].empty());
  desk_.close(7);
  desk_.open(7, kKey);
  EXPECT_TRUE(line_.sent[1].empty());
  EXPECT_TRUE(reads_.empty());
  desk_.open(8, kKey);
  EXPECT_EQ(reads_.size(), 1u) << "another job's waits on";
}

TEST_F(FeedDeskTest, WhatCannotBeReadIsSaidAndTheNextIsRead) {
  desk_.open(7, kKey);
  for (const uint64_t request : {1, 2}) get(1, request);
  done(fail(ErrorCode::NotFound, "there is no such microbatch"));
  const auto said = line_.take<MicrobatchAnswer>(1);
  ASSERT_EQ(said.size(), 1u);
  EXPECT_EQ(said[0].code, ErrorCode::NotFound);
  EXPECT_EQ(said[0].message, "there is no such microbatch");
  done();
  EXPECT_EQ(answered(1), Requests{2});
}

// Those that wait for a feed, those that wait to be read and the one that is: all count, and count no more
// when they are answered.
TEST_F(FeedDeskTest, AConnectionHasABoundOnWhatItAsksFor) {
  desk_.open(7, kKey);
  desk_.expect(8, kKey);
  for (uint64_t request = 1; request <= 256; ++request) get(1, request, request % 2 == 0 ? 7 : 8);
  EXPECT_TRUE(line_.refused.empty());
  done();
  get(1, 257);
  desk_.close(8);
  for (uint64_t request = 0; request < 128; ++request) get(1, 300 + request);
  EXPECT_TRUE(line_.refused.empty());
  get(1, 999);
  EXPECT_EQ(line_.refused[1].code, ErrorCode::ResourceExhausted);
  line_.sent[1].clear();
  done();
  EXPECT_TRUE(line_.sent[1].empty()) << "it has gone";
}

}  // namespace
}  // namespace weft::broker
