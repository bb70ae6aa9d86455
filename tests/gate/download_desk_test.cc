// Blobs out of a store, to connections that are the test.
#include "broker/service/download_desk.h"

#include <gtest/gtest.h>

#include "proto/codec/codec.h"
#include "tests/gate/fake_connections.h"
#include "tests/support/scratch.h"

namespace weft::broker {
namespace {

using std::chrono::seconds;

using test_desks::kMiB;
using test_desks::kThen;

// Each piece stays in the queue until the test takes it.
class Queues final : public test_desks::FakeConnections {
 public:
  void send_frame(ConnectionId to, net::OutFrame frame) override {
    queued[to] += frame.payload_size();
    order.push_back(to);
    FakeConnections::send_frame(to, std::move(frame));
  }
  std::vector<ConnectionId> order;  // of pieces
};

class DownloadDeskTest : public ::testing::Test, public DownloadDesk::Outside {
 protected:
  void SetUp() override {
    line_.on_refused = [this](ConnectionId which) { desk_->end(which); };
    make(0);
  }
  void make(uint64_t rate) { desk_.emplace(line_, *this, *blobs_, rate); }
  void spare_turn_in(Duration wait) override { wait_ = wait; }

  Digest put(size_t size, uint8_t fill) {
    return *blobs_->put(std::vector<std::byte>(size, std::byte{fill}));
  }
  void get(ConnectionId to, uint64_t request, const Digest& blob, bool is_spare = false) {
    desk_->get(to, {.request = request, .sha256 = blob, .rate = is_spare ? 1u : 0u}, now_);
  }
  void take(ConnectionId to) {
    line_.queued[to] = 0;
    desk_->go_on(to, now_);
  }
  // Of a request: bytes that were sent.
  size_t sent(ConnectionId to, uint64_t request) {
    size_t bytes = 0;
    for (const net::OutFrame& frame : line_.frames[to])
      if (frame.head == proto::encode_chunk_head(request)) bytes += frame.body.bytes.size();
    return bytes;
  }

  test::Scratch scratch_;
  std::unique_ptr<storage::BlobStore> blobs_ = *storage::BlobStore::open(scratch_.folder() / "blobs");
  Queues line_;
  std::optional<DownloadDesk> desk_;
  Instant now_ = kThen;
  std::optional<Duration> wait_;
};

TEST_F(DownloadDeskTest, ABlobGoesOutAsItIsTaken) {
  const Digest blob = put(9 * kMiB + 5, 7);
  get(1, 11, blob);
  const auto answer = line_.take<proto::BlobAnswer>(1);
  ASSERT_EQ(answer.size(), 1u);
  EXPECT_EQ(answer[0].request, 11u);
  EXPECT_TRUE(answer[0].message.empty());
  EXPECT_EQ(answer[0].size, 9 * kMiB + 5);
  EXPECT_EQ(sent(1, 11), 4 * kMiB) << "as much as a queue may hold";
  desk_->go_on(1, now_);
  EXPECT_EQ(sent(1, 11), 4 * kMiB) << "nothing was taken";
  take(1);
  take(1);
  EXPECT_EQ(sent(1, 11), 9 * kMiB + 5);
  for (const net::OutFrame& frame : line_.frames[1])
    for (const std::byte byte : frame.body.bytes.first(3)) ASSERT_EQ(byte, std::byte{7});
  take(1);
  EXPECT_EQ(sent(1, 11), 9 * kMiB + 5) << "once";
}

TEST_F(DownloadDeskTest, OneAfterTheOtherAndWhatIsNotThereIsSaid) {
  const Digest first = put(10, 1), empty = put(0, 0), last = put(20, 2);
  for (const auto& [request, blob] : {std::pair{1, first}, {2, Digest{}}, {3, empty}, {4, last}})
    get(1, static_cast<uint64_t>(request), blob);
  const auto answers = line_.take<proto::BlobAnswer>(1);
  ASSERT_EQ(answers.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) EXPECT_EQ(answers[i].request, i + 1);
  EXPECT_EQ(answers[1].code, ErrorCode::NotFound);
  EXPECT_FALSE(answers[1].message.empty());
  EXPECT_EQ(sent(1, 1), 10u);
  EXPECT_EQ(sent(1, 4), 20u);
  EXPECT_EQ(line_.frames[1].size(), 2u);
}

TEST_F(DownloadDeskTest, TooManyAtOnceEndTheirConnection) {
  const Digest blob = put(1, 1);
  line_.queued[1] = kQueuedMax;
  for (uint64_t request = 1; request <= 4096; ++request) get(1, request, blob, request % 2 == 0);
  EXPECT_TRUE(line_.refused.empty());
  get(1, 4097, blob);
  EXPECT_EQ(line_.refused[1].code, ErrorCode::ResourceExhausted);
  take(1);
  EXPECT_TRUE(line_.frames[1].empty());
}

// Of what nobody waits for, no more than the line may carry: a second's worth in about a second.
TEST_F(DownloadDeskTest, CopiesKeepToTheEgressAndTakeTurns) {
  make(2 * kMiB);
  const Digest blob = put(8 * kMiB, 3);
  get(1, 1, blob, true);
  get(2, 2, blob, true);
  EXPECT_EQ(line_.order, std::vector<ConnectionId>{1}) << "a piece, and the line is busy";
  for (const Instant end = now_ + seconds(3); now_ < end;) {
    ASSERT_TRUE(wait_);
    ASSERT_GT(*wait_, Duration{});
    now_ += *std::exchange(wait_, std::nullopt);
    desk_->send_spares(now_);
    for (const ConnectionId to : {1, 2}) take(to);
  }
  EXPECT_LE(line_.order.size(), 8u) << "two a second for three, and what may be ahead";
  EXPECT_GE(line_.order.size(), 6u);
  for (size_t i = 2; i < line_.order.size(); ++i) EXPECT_NE(line_.order[i], line_.order[i - 1]) << i;
}

// Whoever loads has the line at once, and that counts against the copies.
TEST_F(DownloadDeskTest, LoadsWaitForNoEgressAndGoFirst) {
  make(1 * kMiB);
  const Digest copy = put(2 * kMiB, 3), stage = put(3 * kMiB, 4);
  get(1, 1, stage);
  EXPECT_EQ(sent(1, 1), 3 * kMiB);
  get(2, 2, copy, true);
  EXPECT_EQ(sent(2, 2), 0u);
  ASSERT_TRUE(wait_);
  EXPECT_GT(*wait_, seconds(1));
  EXPECT_LE(*wait_, seconds(2)) << "but not for ever";

  get(3, 3, put(6 * kMiB, 5));  // one that has both: its copies come when what it loads has gone
  get(3, 4, copy, true);
  now_ += seconds(100);
  desk_->send_spares(now_);
  EXPECT_EQ(sent(2, 2), 1 * kMiB);
  EXPECT_EQ(sent(3, 4), 0u);
  take(3);
  EXPECT_EQ(sent(3, 3), 6 * kMiB);
  now_ += seconds(100);
  desk_->send_spares(now_);
  take(3);
  now_ += seconds(100);
  desk_->send_spares(now_);
  EXPECT_GT(sent(3, 4), 0u);
}

TEST_F(DownloadDeskTest, WhoHasGoneHasNoTurn) {
  make(1 * kMiB);
  const Digest blob = put(4 * kMiB, 3);
  for (const ConnectionId to : {1, 2, 3}) get(to, to, blob, true);
  desk_->end(2);
  now_ += seconds(10);
  desk_->send_spares(now_);
  now_ += seconds(10);
  desk_->send_spares(now_);
  EXPECT_EQ(line_.order, (std::vector<ConnectionId>{1, 1, 3})) << "the first had its next turn already";
  desk_->go_on(2, now_);
  EXPECT_TRUE(line_.frames[2].empty());
}

}  // namespace
}  // namespace weft::broker
