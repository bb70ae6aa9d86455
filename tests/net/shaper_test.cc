#include "net/shaper.h"

#include <gtest/gtest.h>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

using std::chrono::milliseconds;

Shape both_ways(const ShapeDirection& direction) {
  return {.send = direction, .receive = direction, .seed = 1};
}

TEST(Shaper, FramesArriveIntactThroughARoughLink) {
  const uint64_t seed = 31;
  SCOPED_TRACE("seed " + std::to_string(seed));
  Meeting meeting;
  Side client, server;
  auto options = meeting.client_options();
  options.shape = both_ways(
      {.bytes_per_second = 50e6, .delay = milliseconds(2), .jitter = milliseconds(2), .loss = 0.01});
  meeting.join(client, server, options);
  Rng rng(seed, 0);
  std::vector<std::vector<std::byte>> payloads;
  for (size_t i = 0; i < 200; ++i)
    payloads.push_back(random_bytes(i, rng.below(i % 20 == 0 ? 300'000 : 3000)));
  for (const auto& payload : payloads)
    for (const Side* side : {&client, &server}) side->connection->send(make_frame(1, {}, payload));
  ASSERT_TRUE(meeting.run_until([&] { return client.frames.size() == 200 && server.frames.size() == 200; }));
  for (size_t i = 0; i < payloads.size(); ++i) {
    EXPECT_TRUE(to_vector(client.frames[i]) == payloads[i]);
    EXPECT_TRUE(to_vector(server.frames[i]) == payloads[i]);
  }
}

// How long a frame of `size` takes there and a small one back.
Duration round_trip(Meeting& meeting, Side& client, Side& server, size_t size) {
  const size_t before = client.frames.size();
  const size_t expected = server.frames.size() + 1;
  const Instant start = meeting.loop.now();
  client.connection->send(make_frame(1, {}, random_bytes(1, size)));
  EXPECT_TRUE(meeting.run_until([&] { return server.frames.size() == expected; }));
  server.connection->send(make_frame(1, {}));
  EXPECT_TRUE(meeting.run_until([&] { return client.frames.size() == before + 1; }));
  return meeting.loop.now() - start;
}

TEST(Shaper, NothingComesBeforeTheDelayOfBothDirections) {
  Meeting meeting;
  Side client, server;
  auto options = meeting.client_options();
  options.shape = Shape{.send = {.delay = milliseconds(15)}, .receive = {.delay = milliseconds(10)}};
  meeting.join(client, server, options);
  for (int i = 0; i < 5; ++i) EXPECT_GE(round_trip(meeting, client, server, 10), milliseconds(25));
}

TEST(Shaper, TheAcceptingSideMayEmulateToo) {
  Meeting meeting(
      {.shape = Shape{.send = {.delay = milliseconds(10)}, .receive = {.delay = milliseconds(10)}}});
  Side client, server;
  meeting.join(client, server);
  EXPECT_GE(round_trip(meeting, client, server, 10), milliseconds(20));
}

TEST(Shaper, TheRateHoldsInBothDirections) {
  for (const bool is_receiving : {false, true}) {
    Meeting meeting;
    Side client, server;
    auto options = meeting.client_options();
    options.shape.emplace();
    (is_receiving ? options.shape->receive : options.shape->send).bytes_per_second = 20e6;
    meeting.join(client, server, options);
    Side& from = is_receiving ? server : client;
    Side& to = is_receiving ? client : server;
    // 4 MB at 20 MB/s are 200 ms; of these the burst may be missing, no more.
    const Instant start = meeting.loop.now();
    for (int i = 0; i < 4; ++i) from.connection->send(make_frame(1, {}, random_bytes(1, 1'000'000)));
    ASSERT_TRUE(meeting.run_until([&] { return to.frames.size() == 4; }));
    EXPECT_GE(meeting.loop.now() - start, milliseconds(197));
  }
}

TEST(Shaper, ASlowLinkPushesBack) {
  Meeting meeting;
  Side client, server;
  auto options = meeting.client_options();
  options.shape = Shape{.send = {.bytes_per_second = 1e6, .delay = milliseconds(5)}};
  meeting.join(client, server, options);
  client.connection->send(make_frame(1, {}, random_bytes(1, 30'000'000)));
  ASSERT_TRUE(meeting.run_until([&] { return server.connection->stats().bytes_received > 10'000; }));
  // 256 KiB fit into the link, 256 KiB and a record or two into the output.
  EXPECT_GT(client.connection->stats().bytes_queued, size_t{29'000'000});
}

TEST(Shaper, CloseFlushesThroughTheLink) {
  Meeting meeting;
  Side client, server;
  auto options = meeting.client_options();
  options.shape = both_ways({.bytes_per_second = 20e6, .delay = milliseconds(20)});
  meeting.join(client, server, options);
  for (int i = 0; i < 20; ++i) client.connection->send(make_frame(1, {}, random_bytes(1, 50'000)));
  client.connection->close(kPatience);
  client.connection.reset();
  ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  EXPECT_EQ(server.frames.size(), 20u);
}

TEST(Shaper, TheEndComesAfterTheLastBytes) {
  Meeting meeting;
  Side client, server;
  auto options = meeting.client_options();
  options.shape = Shape{.receive = {.bytes_per_second = 10e6, .delay = milliseconds(20)}};
  meeting.join(client, server, options);
  for (int i = 0; i < 20; ++i) server.connection->send(make_frame(1, {}, random_bytes(1, 50'000)));
  server.connection->close(kPatience);
  ASSERT_TRUE(meeting.run_until([&] { return client.closed.has_value(); }));
  EXPECT_EQ(client.frames.size(), 20u);
}

TEST(Shaper, MayBeDestroyedAtAnyTime) {
  for (int turns = 0; turns < 30; ++turns) {
    Meeting meeting;
    Side client, server;
    auto options = meeting.client_options();
    options.shape = both_ways({.bytes_per_second = 100e6, .delay = std::chrono::microseconds(300)});
    meeting.join(client, server, options);
    client.connection->send(make_frame(1, {}, random_bytes(1, 2'000'000)));
    server.connection->send(make_frame(1, {}, random_bytes(1, 2'000'000)));
    int left = turns * 5;
    meeting.run_until([&] {
      meeting.loop.post([] {});
      return --left < 0;
    });
    client.connection.reset();
    ASSERT_TRUE(meeting.run_until([&] { return server.closed.has_value(); }));
  }
}

}  // namespace
}  // namespace weft::net::test
