#include "net/listener.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

using std::chrono::milliseconds;

TEST(Listener, SilentClientsAreDroppedAtTheDeadline) {
  Meeting meeting({.limits = {.handshake_deadline = milliseconds(30)}});
  RawSocket silent(meeting.listener->endpoint()), slow(meeting.listener->endpoint());
  const std::byte begin[] = {std::byte{0x16}, std::byte{3}, std::byte{1}};
  slow.send(begin);
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().timed_out == 2; }));
  EXPECT_EQ(meeting.listener->stats().open_handshakes, 0u);
  bool is_over = false;
  meeting.loop.post([&] { is_over = true; });
  meeting.run_until([&] { return is_over; });
  EXPECT_EQ(meeting.listener->stats().open_connections, 0u);
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(slow.is_closed());
}

TEST(Listener, HalfOpenHandshakesAreBoundedByAddressAndInAll) {
  for (const bool by_address : {true, false}) {
    ListenOptions options{.limits = {.silent_grace = Duration::zero()}};
    (by_address ? options.limits.handshakes_max_per_address : options.limits.handshakes_max) = 3;
    Meeting meeting(std::move(options));
    std::vector<std::unique_ptr<RawSocket>> sockets;
    for (int i = 0; i < 10; ++i) sockets.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
    ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().accepted == 10; }));
    EXPECT_EQ(meeting.listener->stats().displaced, 7u);  // the oldest: these are the last three
    EXPECT_EQ(meeting.listener->stats().open_handshakes, 3u);
    bool is_over = false;
    meeting.loop.post([&] { is_over = true; });
    meeting.run_until([&] { return is_over; });
    for (size_t i = 0; i < 10; ++i) EXPECT_EQ(sockets[i]->is_closed(), i < 7) << i;
    sockets.clear();
    ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_handshakes == 0; }));
    Side client, server;
    meeting.join(client, server);  // there is room again
  }
}

// 70 half-open sockets of one address once kept every newcomer of it out for ten seconds, 256 everybody.
TEST(Listener, SlotsThatAreHeldByTheSilentKeepNobodyOut) {
  for (const size_t silent_count : {70, 300}) {
    Meeting meeting({.limits = {.silent_grace = Duration::zero()}});
    std::vector<std::unique_ptr<RawSocket>> silent;
    for (size_t i = 0; i < silent_count; ++i)
      silent.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
    ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().accepted == silent_count; }));
    Side client, server;
    meeting.join(client, server);
    EXPECT_EQ(meeting.listener->stats().refused_by_limit, 0u);
  }
}

// Displaced by each other, of many that come at once none would ever be done.
TEST(Listener, ThoseWhoDoWhatTheyShouldAreNotDisplaced) {
  Meeting meeting(
      {.limits = {.handshakes_max_per_address = 3, .silent_grace = kPatience, .slow_grace = kPatience}});
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (int i = 0; i < 10; ++i) sockets.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().accepted == 10; }));
  EXPECT_EQ(meeting.listener->stats().refused_by_limit, 7u);
  EXPECT_EQ(meeting.listener->stats().displaced, 0u);
  EXPECT_EQ(meeting.listener->stats().open_handshakes, 3u);
}

TEST(Listener, TheSilentAreHurriedWhenHalfOfTheSlotsAreTaken) {
  Meeting meeting({.limits = {.handshakes_max_per_address = 8,
                              .handshake_deadline = kPatience,
                              .first_byte_deadline_when_busy = milliseconds(30)}});
  std::vector<std::unique_ptr<RawSocket>> silent;
  for (int i = 0; i < 4; ++i) silent.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
  RawSocket slow(meeting.listener->endpoint());
  slow.send(std::vector{std::byte{0x16}, std::byte{3}});
  // The fourth came when half was taken; those before it have time until somebody else comes.
  ASSERT_TRUE(meeting.run_until(
      [&] { return meeting.listener->stats().timed_out == 1 && meeting.listener->stats().accepted == 5; }));
  Side client, server;
  meeting.join(client, server);
  EXPECT_EQ(meeting.listener->stats().timed_out, 4u);
  EXPECT_FALSE(slow.is_closed());  // it has begun
  EXPECT_EQ(meeting.listener->stats().displaced, 0u);
}

TEST(Listener, ConnectionsAreBoundedByAddressAndInAll) {
  for (const bool by_address : {true, false}) {
    Meeting meeting(by_address ? ListenOptions{.limits = {.connections_max_per_address = 2}}
                               : ListenOptions{.limits = {.connections_max = 2}});
    std::vector<Side> sides(4);
    meeting.join(sides[0], sides[1]);
    meeting.join(sides[2], sides[3]);
    const auto refused = meeting.begin();
    ASSERT_TRUE(meeting.run_until([&] { return refused->is_done(); }));
    EXPECT_EQ(refused->code(), ErrorCode::Unavailable) << refused->message();
    EXPECT_EQ(meeting.listener->stats().refused_by_limit, 1u);
    EXPECT_EQ(meeting.listener->stats().open_connections, 2u);
    sides[1].connection.reset();
    ASSERT_TRUE(meeting.run_until([&] { return sides[0].closed.has_value(); }));
    Side client, server;
    meeting.join(client, server);
  }
}

TEST(Listener, AcceptedConnectionsOutliveIt) {
  Meeting meeting;
  Side client, server;
  meeting.join(client, server);
  RawSocket half_open(meeting.listener->endpoint());
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_handshakes == 1; }));
  meeting.listener.reset();
  client.connection->send(make_frame(1, random_bytes(1, 100)));
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 1; }));
  EXPECT_TRUE(half_open.is_closed());
}

TEST(Listener, MayBeDestroyedInItsOwnHandlers) {
  for (const bool in_admits : {true, false}) {
    Loop loop;
    std::unique_ptr<Listener> listener;
    std::vector<ConnectionPtr> accepted;
    listener = std::move(*Listener::open(loop, {"127.0.0.1", 0},
                                         {.identity = &server_identity(),
                                          .admits =
                                              [&](const PeerId&) {
                                                if (in_admits) listener.reset();
                                                return true;
                                              }},
                                         [&](ConnectionPtr connection) {
                                           accepted.push_back(std::move(connection));
                                           listener.reset();
                                         }));
    bool is_done = false;
    const auto attempt = connect(loop, listener->endpoint(),
                                 {.identity = &client_identity(), .expected = server_identity().id()},
                                 [&](const Result<ConnectionPtr>&) { is_done = true; });
    ASSERT_TRUE(loop.run_until(kPatience, [&] { return is_done && !listener; }));
    EXPECT_EQ(accepted.size(), in_admits ? 0u : 1u);
  }
}

TEST(Listener, APortThatIsTakenIsUnavailable) {
  Meeting meeting;
  const auto second = Listener::open(meeting.loop, meeting.listener->endpoint(),
                                     {.identity = &server_identity()}, [](ConnectionPtr) {});
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::Unavailable);
  EXPECT_NE(second.error().message.find(to_string(meeting.listener->endpoint())), std::string::npos);
}

TEST(Listener, AnAddressOfAnotherMachineIsInvalid) {
  Loop loop;
  const auto listener =
      Listener::open(loop, {"192.0.2.1", 0}, {.identity = &server_identity()}, [](ConnectionPtr) {});
  ASSERT_FALSE(listener);
  EXPECT_TRUE(listener.error().code == ErrorCode::InvalidArgument) << listener.error().message;
}

TEST(Listener, WithoutDescriptorsItWaitsAndGoesOn) {
  Meeting meeting;
  RawSocket socket(meeting.listener->endpoint());
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  std::vector<int> taken;
  const int lowest = ::dup(0);
  ::close(lowest);
  const rlimit low{static_cast<rlim_t>(lowest), limit.rlim_max};  // no descriptor is left
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  int turns = 0;
  meeting.loop.run_until(milliseconds(50), [&] {
    ++turns;
    return false;
  });
  const auto accepted = meeting.listener->stats().accepted;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(accepted, 0u);
  EXPECT_LT(turns, 20) << "it spins";
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().accepted == 1; }));
}

}  // namespace
}  // namespace weft::net::test
