// What the connections of a link are given, and which tensors are expected over it.
#include "peer/service/link_channels.h"

#include <gtest/gtest.h>

#include <utility>

#include "peer/service/bulk.h"
#include "peer/service/expected_tensors.h"

namespace weft::peer {
namespace {

using std::chrono::milliseconds;
constexpr size_t kPieceBytes = proto::kPieceSize;
const Instant kNow = Instant{} + std::chrono::hours(1);

class FakeConnection final : public net::Connection {
 public:
  const PeerId& remote() const override { return remote_; }
  std::string remote_address() const override { return "fake"; }
  void set_limits(const net::ConnectionLimits&) override {}
  void start(Handlers) override {}
  void send(net::OutFrame frame) override {
    stats_now.bytes_queued += frame.payload_size();
    ++frames;
  }
  void pause_reading(bool paused) override { is_paused = paused; }
  void close(Duration) override {}
  net::ConnectionStats stats() const override { return stats_now; }
  size_t unsent() const override { return stats_now.bytes_queued; }
  // All that it was given.
  void drain() { stats_now.bytes_sent += std::exchange(stats_now.bytes_queued, 0); }

  net::ConnectionStats stats_now;
  size_t frames = 0;
  bool is_paused = false;

 private:
  PeerId remote_;
};

class LinkChannelsTest : public testing::Test {
 protected:
  std::shared_ptr<FakeConnection> add(uint64_t number) {
    auto connection = std::make_shared<FakeConnection>();
    channels_.add(number, connection);
    return connection;
  }
  void queue(size_t pieces) {
    const dag::Tensor tensor(dag::TensorSpec{dag::DType::U8, {static_cast<int64_t>(pieces * kPieceBytes)}});
    ASSERT_TRUE(queue_.add({.step = 1}, tensor_frame({.step = 1, .spec = tensor.spec()}, tensor)));
  }
  void give(Instant now = kNow) { channels_.give(queue_, /*whole=*/false, now); }

  LinkChannels channels_;
  LinkQueue queue_;
};

TEST_F(LinkChannelsTest, OnlyThoseThatCarryAreGivenAnythingAndLittleAtATime) {
  const auto first = add(1), second = add(2);
  queue(10);
  give();
  EXPECT_EQ(first->frames + second->frames, 0u);
  channels_.carry(2);
  give();
  EXPECT_EQ(first->frames, 0u);
  EXPECT_EQ(second->frames, 1u) << "a piece ahead, to begin with";
  EXPECT_GT(channels_.unsent(), kPieceBytes);
  second->drain();
  give();
  EXPECT_EQ(second->frames, 2u);
  channels_.end_session();
  EXPECT_FALSE(channels_.is_carrying());
  second->drain();
  give();
  EXPECT_EQ(second->frames, 2u);
}

TEST_F(LinkChannelsTest, PiecesGoToWhicheverHasTheLeast) {
  const auto first = add(1), second = add(2);
  channels_.carry(1);
  channels_.carry(2);
  queue(10);
  first->stats_now.bytes_queued = 100;
  give();
  EXPECT_EQ(first->frames, 1u);
  EXPECT_EQ(second->frames, 1u);
  second->drain();
  give();
  EXPECT_EQ(first->frames, 1u);
  EXPECT_EQ(second->frames, 2u);
}

// What a connection is given ahead follows how fast it goes, between a piece and what a link may have.
TEST_F(LinkChannelsTest, WhatGoesAtOnceMayBeMoreTheNextTime) {
  const auto connection = add(1);
  channels_.carry(1);
  LinkChannels::Channel& channel = *channels_.find(1);
  const size_t least = channel.ahead;
  channel.given = kNow;
  channels_.on_drained(channel, /*streams=*/1, kNow);
  EXPECT_EQ(channel.ahead, 2 * least);
  channels_.on_drained(channel, /*streams=*/1, kNow + milliseconds(4));
  EXPECT_EQ(channel.ahead, 2 * least) << "neither fast nor slow";
  for (int i = 0; i < 10; ++i) channels_.on_drained(channel, /*streams=*/1, kNow);
  EXPECT_EQ(channel.ahead, size_t{512} << 10);
  channels_.on_drained(channel, /*streams=*/4, kNow);
  EXPECT_EQ(channel.ahead, size_t{128} << 10) << "all connections of a link share";
  for (int i = 0; i < 10; ++i) channels_.on_drained(channel, /*streams=*/4, kNow + milliseconds(9));
  EXPECT_EQ(channel.ahead, least);
}

TEST_F(LinkChannelsTest, BytesAreCountedOnceAlsoOfThoseThatHaveGone) {
  const auto first = add(1), second = add(2);
  first->stats_now.bytes_sent = 100;
  second->stats_now.bytes_sent = 10;
  EXPECT_EQ(channels_.take_sent(), 110u);
  first->stats_now.bytes_sent = 150;
  EXPECT_EQ(channels_.take(1), first);
  EXPECT_EQ(channels_.take(1), nullptr);
  EXPECT_FALSE(channels_.contains(1));
  second->stats_now.bytes_sent = 17;
  EXPECT_EQ(channels_.take_sent(), 57u);
  EXPECT_EQ(channels_.take_sent(), 0u);
}

TEST_F(LinkChannelsTest, HeardIsWhatSomethingCameOver) {
  const auto first = add(1), second = add(2);
  EXPECT_EQ(channels_.heard(false), std::vector<uint64_t>{});
  second->stats_now.bytes_received = 5;
  EXPECT_EQ(channels_.heard(false), std::vector<uint64_t>{2});
  EXPECT_EQ(channels_.heard(false), std::vector<uint64_t>{});
  EXPECT_EQ(channels_.heard(true), (std::vector<uint64_t>{1, 2})) << "who does not read cannot tell";
  channels_.carry(2);
  EXPECT_EQ(channels_.came(), 5u);
  channels_.pause_reading(true);
  EXPECT_TRUE(second->is_paused);
  EXPECT_FALSE(first->is_paused) << "it carries nothing";
}

TEST(ExpectedTensors, WhatHasNoEdgeIsNotExpected) {
  const ExpectedTensors expected(std::make_shared<proto::AssignStage>());
  EXPECT_EQ(expected.expects({.edge = 3}), false);
}

}  // namespace
}  // namespace weft::peer
