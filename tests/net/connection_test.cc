#include "net/connection.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <numeric>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

TEST(Connection, BothSidesKnowEachOther) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  EXPECT_EQ(client.connection->remote(), server_identity().id());
  EXPECT_EQ(server.connection->remote(), client_identity().id());
  EXPECT_TRUE(server.connection->remote_address().starts_with("127.0.0.1:"))
      << server.connection->remote_address();
}

TEST(Connection, FramesOfManySizesArriveIntactAndInOrderBothWays) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  const std::vector<size_t> sizes = {0,     1,     2,     5,     16379, 16380,   16384,      16385,
                                     16389, 32768, 50000, 65536, 99999, 1 << 20, 20'000'001, 3};
  std::vector<std::vector<std::byte>> payloads;
  for (size_t i = 0; i < sizes.size(); ++i)
    for (const size_t cut : {size_t{0}, sizes[i] / 3, sizes[i]}) {
      const auto payload = random_bytes(i, sizes[i]);
      const auto middle = payload.begin() + static_cast<ptrdiff_t>(cut);
      for (Side* side : {&client, &server})
        side->connection->send(make_frame(static_cast<uint8_t>(payloads.size()), {payload.begin(), middle},
                                          {middle, payload.end()}));
      payloads.push_back(payload);
    }
  ASSERT_TRUE(meeting.run_until(
      [&] { return client.frames.size() == payloads.size() && server.frames.size() == payloads.size(); }));
  for (const Side* side : {&client, &server})
    for (size_t i = 0; i < payloads.size(); ++i) {
      EXPECT_EQ(side->frames[i].kind, i);
      EXPECT_TRUE(to_vector(side->frames[i]) == payloads[i]) << "frame " << i;
    }
  const auto stats = client.connection->stats();
  const size_t bytes =
      std::accumulate(payloads.begin(), payloads.end(), size_t{0},
                      [](size_t sum, const auto& p) { return sum + p.size() + kFrameHeaderSize; });
  EXPECT_EQ(stats.bytes_sent, bytes);
  EXPECT_EQ(stats.bytes_received, bytes);
  EXPECT_EQ(stats.frames_sent, payloads.size());
  EXPECT_EQ(stats.frames_received, payloads.size());
  EXPECT_EQ(stats.bytes_queued, 0u);
}

TEST(Connection, RandomFramesFromASeed) {
  const uint64_t seed = 4711;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Rng rng(seed, 0);
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  constexpr size_t kFrames = 3000;
  for (size_t i = 0; i < kFrames; ++i) {
    const size_t bound = i % 50 == 0 ? 300'000 : i % 7 == 0 ? 40'000 : 200;
    auto head = random_bytes(i, rng.below(100));
    client.connection->send(make_frame(7, std::move(head), random_bytes(i + 1, rng.below(bound))));
  }
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == kFrames; }));
  Rng again(seed, 0);
  for (size_t i = 0; i < kFrames; ++i) {
    const size_t bound = i % 50 == 0 ? 300'000 : i % 7 == 0 ? 40'000 : 200;
    auto expected = random_bytes(i, again.below(100));
    const auto body = random_bytes(i + 1, again.below(bound));
    expected.insert(expected.end(), body.begin(), body.end());
    ASSERT_TRUE(to_vector(server.frames[i]) == expected) << "frame " << i;
  }
}

TEST(Connection, WhatGoesFirstWaitsForTheFrameThatHasBegunAlone) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  const auto send = [&](uint8_t kind, size_t size, bool goes_first) {
    OutFrame frame = make_frame(kind, {}, random_bytes(kind, size));
    frame.goes_first = goes_first;
    client.connection->send(std::move(frame));
  };
  constexpr size_t kLarge = 40'000'000;  // more than system buffers hold
  send(1, kLarge, false);
  send(2, 10, false);
  send(3, 10, true);  // none has begun
  send(4, 10, true);
  ASSERT_TRUE(meeting.run_until([&] { return client.connection->stats().bytes_sent > 1000; }));
  ASSERT_GT(client.connection->stats().bytes_queued, 0u);
  send(5, 10, true);  // the large one has
  send(6, 10, false);
  send(7, 10, true);
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 7; }));
  std::vector<int> kinds;
  for (const InFrame& frame : server.frames) kinds.push_back(frame.kind);
  EXPECT_EQ(kinds, (std::vector<int>{3, 4, 1, 5, 7, 2, 6}));
  EXPECT_EQ(to_vector(server.frames[2]), random_bytes(1, kLarge));
}

TEST(Connection, FramesSentBeforeTheOtherSideStartedWait) {
  Meeting meeting;
  const auto outcome = meeting.begin();
  ASSERT_TRUE(meeting.run_until([&] { return outcome->is_done() && meeting.accepted.size() == 1; }));
  Side client{.connection = **outcome->result}, server{.connection = meeting.accepted[0]};
  client.start();
  client.connection->send(make_frame(9, random_bytes(1, 1000)));
  ASSERT_TRUE(meeting.run_until([&] { return client.drained_count == 1; }));
  EXPECT_TRUE(server.frames.empty());
  server.start();
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 1; }));
  EXPECT_TRUE(to_vector(server.frames[0]) == random_bytes(1, 1000));
}

TEST(Connection, AFrameOverTheLimitClosesAndIsNotAllocated) {
  Meeting meeting;
  const auto outcome = meeting.begin();
  ASSERT_TRUE(meeting.run_until([&] { return outcome->is_done() && meeting.accepted.size() == 1; }));
  Side client{.connection = **outcome->result}, server{.connection = meeting.accepted[0]};
  client.start();
  server.start({.frame_size_max = 1000});
  client.connection->send(make_frame(1, random_bytes(1, 1000)));
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 1; }));
  client.connection->send(make_frame(1, random_bytes(1, 1001)));
  ASSERT_TRUE(meeting.run_until([&] { return server.closed && client.closed; }));
  EXPECT_EQ(server.closed->code, ErrorCode::ResourceExhausted);
  EXPECT_NE(server.closed->message.find("1001"), std::string::npos) << server.closed->message;
  EXPECT_EQ(client.closed->code, ErrorCode::Unavailable);
  EXPECT_EQ(server.frames.size(), 1u);
}

size_t resident_bytes() {
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * 4096;
}

TEST(Connection, AnAnnouncedSizeIsNotBelievedBeforeItsBytesCome) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  server.connection->set_limits({.frame_size_max = UINT32_MAX});
  const size_t before = resident_bytes();
  // The body is virtual: the queue is dropped before it is sent.
  auto owner = std::make_shared<Buffer>(size_t{900} << 20);
  client.connection->send({.kind = 1, .head = {}, .body = {owner, owner->span()}});
  ASSERT_TRUE(meeting.run_until([&] { return server.connection->stats().bytes_received > 100'000; }));
  client.connection.reset();
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_LT(resident_bytes(), before + (size_t{300} << 20));
}

TEST(Connection, SendingMoreThanTheQueueHoldsCloses) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  server.connection->pause_reading(true);
  client.connection->set_limits({.send_queue_max = 1 << 20});
  bool is_sending = true;
  for (int i = 0; i < 3; ++i) client.connection->send(make_frame(1, random_bytes(1, 500'000)));
  is_sending = false;
  EXPECT_FALSE(client.closed) << "on_closed came from within send()";
  ASSERT_TRUE(meeting.run_until([&] { return client.closed.has_value(); }));
  EXPECT_FALSE(is_sending);
  EXPECT_EQ(client.closed->code, ErrorCode::ResourceExhausted);
  client.connection->send(make_frame(1, {}));
  EXPECT_EQ(client.closed_count, 1);
}

TEST(Connection, PausedReadingSlowsTheSenderDown) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  server.connection->pause_reading(true);
  constexpr size_t kFrames = 64;
  for (size_t i = 0; i < kFrames; ++i) client.connection->send(make_frame(1, {}, random_bytes(i, 1 << 20)));
  // All that fits between the two has gone when a full turn of the loop moves nothing.
  size_t queued = 0;
  int idle = 0;
  ASSERT_TRUE(meeting.run_until([&] {
    const size_t now = client.connection->stats().bytes_queued;
    idle = now == queued ? idle + 1 : 0;
    queued = now;
    if (idle < 3) meeting.loop.post([] {});
    return idle >= 3;
  }));
  EXPECT_GT(queued, size_t{20} << 20);
  EXPECT_TRUE(server.frames.empty());
  EXPECT_EQ(client.drained_count, 0);
  server.connection->pause_reading(false);
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == kFrames; }));
  EXPECT_EQ(client.connection->stats().bytes_queued, 0u);
  EXPECT_GE(client.drained_count, 1);
}

TEST(Connection, PausingInsideAFrameHandlerHoldsTheNextFrame) {
  Meeting meeting;
  Side client, server;
  const auto outcome = meeting.begin();
  ASSERT_TRUE(meeting.run_until([&] { return outcome->is_done() && meeting.accepted.size() == 1; }));
  client.connection = **outcome->result;
  client.start();
  const ConnectionPtr receiver = meeting.accepted[0];
  int frames = 0;
  receiver->start({.on_frame =
                       [&](InFrame) {
                         ++frames;
                         receiver->pause_reading(true);
                       },
                   .on_closed = [](const Error&) {}});
  for (int i = 0; i < 10; ++i) client.connection->send(make_frame(1, random_bytes(1, 10)));
  for (int expected = 1; expected <= 10; ++expected) {
    ASSERT_TRUE(meeting.run_until([&] { return frames >= expected; }));
    EXPECT_EQ(frames, expected);
    receiver->pause_reading(false);
  }
}

TEST(Connection, CloseSendsWhatIsQueuedFirst) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  for (int i = 0; i < 40; ++i) client.connection->send(make_frame(1, {}, random_bytes(1, 1 << 20)));
  client.connection->close(kPatience);
  client.connection.reset();  // the session goes on without it
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(server.frames.size(), 40u);
  EXPECT_EQ(server.closed->code, ErrorCode::Unavailable);
  EXPECT_EQ(server.closed_count, 1);
  EXPECT_EQ(client.closed_count, 0) << "no handler is called after close()";
}

TEST(Connection, CloseFlushesAlsoWhenBothSidesSend) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  for (int i = 0; i < 40; ++i)
    for (Side* side : {&client, &server}) side->connection->send(make_frame(1, {}, random_bytes(1, 1 << 20)));
  client.connection->close(kPatience);
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(server.frames.size(), 40u);
}

TEST(Connection, CloseWithAPausedReceiverEndsAtItsDeadline) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  server.connection->pause_reading(true);
  for (int i = 0; i < 40; ++i) client.connection->send(make_frame(1, {}, random_bytes(1, 1 << 20)));
  std::weak_ptr<Connection> weak = client.connection;
  client.connection->close(std::chrono::milliseconds(20));
  client.connection.reset();
  EXPECT_TRUE(weak.expired());
  bool is_over = false;
  const auto timer = meeting.loop.after(std::chrono::milliseconds(60), [&] { is_over = true; });
  ASSERT_TRUE(meeting.run_until([&] { return is_over; }));
  server.connection->pause_reading(false);
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_LT(server.frames.size(), 40u);
}

TEST(Connection, LettingGoClosesAtOnce) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  client.connection.reset();
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(client.closed_count, 0);
  EXPECT_EQ(server.closed_count, 1);
}

TEST(Connection, WhatWasSaidBeforeAnAbruptEndIsHeard) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  // The server says why and goes, while the client is sending a lot.
  server.connection->send(make_frame(3, random_bytes(5, 100)));
  server.connection->close(kPatience);
  ASSERT_TRUE(meeting.run_until([&] { return client.closed.has_value(); }));
  ASSERT_EQ(client.frames.size(), 1u);
  EXPECT_EQ(client.frames[0].kind, 3);
}

TEST(Connection, MayBeDestroyedInItsOwnHandlers) {
  for (const bool by_close : {false, true}) {
    Meeting meeting;
    Side client, server;
    const auto outcome = meeting.begin();
    ASSERT_TRUE(meeting.run_until([&] { return outcome->is_done() && meeting.accepted.size() == 1; }));
    client.connection = **outcome->result;
    client.start();
    outcome->result.reset();
    ConnectionPtr receiver = std::move(meeting.accepted[0]);
    meeting.accepted.clear();
    int frames = 0;
    receiver->start({.on_frame =
                         [&, text = std::string(100, 'x')](InFrame) {
                           if (by_close)
                             receiver->close();
                           else
                             receiver.reset();
                           frames += static_cast<int>(text.size()) / 100;
                         },
                     .on_closed = [](const Error&) { FAIL(); }});
    for (int i = 0; i < 10; ++i) client.connection->send(make_frame(1, random_bytes(1, 10)));
    ASSERT_TRUE(meeting.run_until([&] { return client.closed.has_value(); }));
    EXPECT_EQ(frames, 1);
  }
}

TEST(Connection, SharedBytesAreHeldUntilSentAndThenLetGo) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  auto owner = std::make_shared<const std::vector<std::byte>>(random_bytes(3, 1 << 20));
  const std::weak_ptr<const std::vector<std::byte>> weak = owner;
  client.connection->send({.kind = 1, .head = {}, .body = {owner, *owner}});
  owner.reset();
  EXPECT_FALSE(weak.expired());
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 1; }));
  EXPECT_TRUE(weak.expired());
  EXPECT_TRUE(to_vector(server.frames[0]) == random_bytes(3, 1 << 20));
}

TEST(Connection, OutlivesItsLoopWithoutHarm) {
  Side client, server;
  std::unique_ptr<Outcome> pending;
  {
    Meeting meeting;
    meeting.join(client, server);
    client.connection->send(make_frame(1, {}, random_bytes(1, 10 << 20)));
    server.connection->send(make_frame(1, {}, random_bytes(1, 10 << 20)));
    server.connection->close(kPatience);
    pending = meeting.begin();
  }
  client.connection->send(make_frame(1, {}));
  client.connection->pause_reading(true);
  client.connection->close(std::chrono::seconds(1));
  EXPECT_EQ(client.connection->stats().bytes_queued, 0u);
  EXPECT_EQ(client.closed_count + server.closed_count, 0);
  EXPECT_FALSE(pending->is_done());
}

}  // namespace
}  // namespace weft::net::test
