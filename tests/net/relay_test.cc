#include "net/relay.h"

#include <gtest/gtest.h>

#include "tests/net/meeting.h"

namespace weft::net::test {
namespace {

using std::chrono::milliseconds;

RelayTicket ticket(uint8_t first) {
  RelayTicket made;
  made.bytes.fill(first);
  return made;
}

// A relay that grants ticket 1, and peers that meet there.
class RelayTest : public ::testing::Test {
 protected:
  explicit RelayTest(Duration wait = milliseconds(100)) : meeting(options(wait)) {}
  static ListenOptions options(Duration wait) {
    return {.limits = {.relay_wait = wait},
            .relay_ticket_is_granted = [](const RelayTicket& shown) { return shown == ticket(1); }};
  }
  std::unique_ptr<Outcome> begin(bool initiates, const RelayTicket& shown = ticket(1)) {
    ConnectOptions connect{.identity = initiates ? &client_identity() : &other_identity(),
                           .expected = initiates ? other_identity().id() : client_identity().id(),
                           .deadline = kPatience};
    return begin(initiates, shown, connect);
  }
  std::unique_ptr<Outcome> begin(bool initiates, const RelayTicket& shown, const ConnectOptions& connect) {
    auto outcome = std::make_unique<Outcome>();
    outcome->attempt = connect_by_relay(
        meeting.loop, meeting.listener->endpoint(), shown, initiates, connect,
        [at = outcome.get()](Result<ConnectionPtr> result) { at->result = std::move(result); });
    return outcome;
  }
  void join(Side& client, Side& server) {
    const auto one = begin(true), two = begin(false);
    ASSERT_TRUE(meeting.run_until([&] { return one->is_done() && two->is_done(); }));
    ASSERT_TRUE(one->is_connected()) << one->message();
    ASSERT_TRUE(two->is_connected()) << two->message();
    client.connection = **one->result;
    server.connection = **two->result;
    client.start();
    server.start();
  }

  Meeting meeting;
};
class PatientRelayTest : public RelayTest {
 protected:
  PatientRelayTest() : RelayTest(kPatience) {}
};

TEST_F(RelayTest, JoinsTwoPeersWhoSeeEachOthersKeys) {
  Side client, server;
  join(client, server);
  EXPECT_EQ(client.connection->remote(), other_identity().id());
  EXPECT_EQ(server.connection->remote(), client_identity().id());
  EXPECT_EQ(meeting.listener->stats().open_relays, 1u);
  EXPECT_TRUE(meeting.accepted.empty());
  for (size_t i = 0; i < 30; ++i) {
    client.connection->send(make_frame(1, random_bytes(i, 700), random_bytes(i, 300'000)));
    server.connection->send(make_frame(2, {}, random_bytes(i, 200'000)));
  }
  ASSERT_TRUE(meeting.run_until([&] { return client.frames.size() == 30 && server.frames.size() == 30; }));
  for (size_t i = 0; i < 30; ++i) {
    EXPECT_TRUE(to_vector(client.frames[i]) == random_bytes(i, 200'000));
    EXPECT_EQ(server.frames[i].payload.size(), 300'700u);
  }
  EXPECT_GT(meeting.listener->stats().relayed_bytes, 30u * 500'000u);
}

TEST_F(RelayTest, EndsWhenOneSideCloses) {
  Side client, server;
  join(client, server);
  client.connection->send(make_frame(1, {}, random_bytes(1, 3'000'000)));
  client.connection->close(kPatience);
  ASSERT_TRUE(
      meeting.run_until([&] { return server.closed && meeting.listener->stats().open_connections == 0; }));
  EXPECT_EQ(server.frames.size(), 1u);
  EXPECT_EQ(meeting.listener->stats().open_relays, 0u);
}

TEST_F(RelayTest, PushesBackOnTheSender) {
  Side client, server;
  join(client, server);
  server.connection->pause_reading(true);
  for (int i = 0; i < 64; ++i) client.connection->send(make_frame(1, {}, random_bytes(1, 1 << 20)));
  size_t queued = 0;
  int idle = 0;
  ASSERT_TRUE(meeting.run_until([&] {
    const size_t now = client.connection->stats().bytes_queued;
    idle = now == queued ? idle + 1 : 0;
    queued = now;
    if (idle < 5) meeting.loop.post([] {});
    return idle >= 5;
  }));
  EXPECT_GT(queued, size_t{10} << 20);
  server.connection->pause_reading(false);
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 64; }));
}

TEST_F(RelayTest, UnknownTicketIsClosed) {
  const auto outcome = begin(true, ticket(9));
  ASSERT_TRUE(meeting.run_until([&] { return outcome->is_done(); }));
  EXPECT_EQ(outcome->code(), ErrorCode::Unavailable) << outcome->message();
}

TEST_F(RelayTest, TwoPeersMeetAgainAndTheirOldPairEnds) {
  Side client, server, client_again, server_again;
  join(client, server);
  join(client_again, server_again);
  ASSERT_TRUE(meeting.run_until([&] { return client.closed && server.closed; }));
  EXPECT_EQ(meeting.listener->stats().open_relays, 1u);
  client_again.connection->send(make_frame(1, random_bytes(1, 10)));
  ASSERT_TRUE(meeting.run_until([&] { return server_again.frames.size() == 1; }));
}

TEST_F(RelayTest, ALoneSideThatComesAgainLeavesAnOpenPairAlone) {
  Side client, server;
  join(client, server);
  const auto third = begin(true);
  ASSERT_TRUE(meeting.run_until([&] { return third->is_done(); }));
  EXPECT_EQ(third->code(), ErrorCode::Unavailable) << third->message();
  client.connection->send(make_frame(1, random_bytes(1, 10)));
  ASSERT_TRUE(meeting.run_until([&] { return server.frames.size() == 1; }));
}

TEST_F(PatientRelayTest, ASideIsNeverJoinedWithItselfComeAgain) {
  const auto first = begin(true), again = begin(true);
  ASSERT_TRUE(meeting.run_until([&] { return first->is_done() || again->is_done(); }));
  EXPECT_TRUE(first->is_done() != again->is_done()) << "the newer one goes on waiting";
  EXPECT_EQ(meeting.listener->stats().open_relays, 0u);
  const auto other = begin(false);
  ASSERT_TRUE(meeting.run_until([&] { return other->is_done(); }));
  EXPECT_TRUE(other->is_connected()) << other->message();
}

TEST_F(RelayTest, LoneSideIsClosedAfterItsWait) {
  const auto lone = begin(true);
  ASSERT_TRUE(meeting.run_until([&] { return lone->is_done(); }));
  EXPECT_EQ(lone->code(), ErrorCode::Unavailable) << lone->message();
  EXPECT_EQ(meeting.listener->stats().timed_out, 1u);
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_connections == 0; }));
}

TEST_F(RelayTest, DeadlineOfTheAttemptCountsAtTheRelayToo) {
  ConnectOptions options{
      .identity = &client_identity(), .expected = other_identity().id(), .deadline = milliseconds(10)};
  const auto lone = begin(true, ticket(1), options);
  ASSERT_TRUE(meeting.run_until([&] { return lone->is_done(); }));
  EXPECT_EQ(lone->code(), ErrorCode::Timeout) << lone->message();
}

TEST_F(RelayTest, WrongKeyBehindTheRelayIsRefused) {
  ConnectOptions options{
      .identity = &client_identity(), .expected = server_identity().id(), .deadline = kPatience};
  const auto one = begin(true, ticket(1), options), two = begin(false);
  ASSERT_TRUE(meeting.run_until([&] { return one->is_done() && two->is_done(); }));
  EXPECT_EQ(one->code(), ErrorCode::PermissionDenied) << one->message();
  EXPECT_FALSE(two->is_connected());
}

TEST_F(RelayTest, ASideThatSpeaksBeforeTheAnswerIsClosed) {
  RawSocket socket(meeting.listener->endpoint());
  socket.send(relay_preamble({ticket(1)}));
  ASSERT_TRUE(meeting.run_until([&] {
    return meeting.listener->stats().open_handshakes == 0 && meeting.listener->stats().accepted == 1;
  }));
  const std::byte early{5};
  socket.send({&early, 1});
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().open_connections == 0; }));
  EXPECT_EQ(meeting.listener->stats().timed_out, 0u);
}

TEST_F(RelayTest, PreambleMayComeByteByByte) {
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (int i = 0; i < 2; ++i) {
    sockets.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
    for (const std::byte byte : relay_preamble({ticket(1), i == 0})) {
      sockets.back()->send({&byte, 1});
      meeting.loop.run_until(milliseconds(0), [] { return false; });
    }
  }
  ASSERT_TRUE(meeting.run_until([&] {
    const bool closed = sockets[0]->is_closed() || sockets[1]->is_closed();
    if (sockets[0]->received.empty() || sockets[1]->received.empty()) meeting.loop.post([] {});
    return closed || (!sockets[0]->received.empty() && !sockets[1]->received.empty());
  }));
  EXPECT_EQ(sockets[0]->received, std::vector{kRelayJoined});
  EXPECT_EQ(sockets[1]->received, std::vector{kRelayJoined});
}

TEST(RelayPreamble, IsExact) {
  for (const bool initiates : {false, true})
    EXPECT_EQ(parse_relay_preamble(relay_preamble({ticket(3), initiates})),
              (RelayPreamble{ticket(3), initiates}));
  auto bytes = relay_preamble({ticket(3)});
  EXPECT_FALSE(parse_relay_preamble(std::span(bytes).first(bytes.size() - 1)));
  bytes[6] = std::byte{2};
  EXPECT_FALSE(parse_relay_preamble(bytes)) << "there are two sides";
}

TEST(RelayLimits, PairsAreBounded) {
  Meeting meeting(
      {.limits = {.relay_pairs_max = 2}, .relay_ticket_is_granted = [](const RelayTicket&) { return true; }});
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (uint8_t i = 0; i < 5; ++i) {
    sockets.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
    sockets.back()->send(relay_preamble({ticket(i)}));
  }
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().refused_by_limit == 3; }));
  EXPECT_EQ(meeting.listener->stats().open_connections, 2u);
}

TEST(RelayLimits, WithoutAnyRelayThePreambleIsGarbage) {
  Meeting meeting;
  RawSocket socket(meeting.listener->endpoint());
  socket.send(relay_preamble({ticket(1)}));
  ASSERT_TRUE(meeting.run_until([&] { return meeting.listener->stats().handshakes_failed == 1; }));
}

TEST(RelayEnd, TheListenerGoesWithOpenRelays) {
  Meeting meeting({.relay_ticket_is_granted = [](const RelayTicket&) { return true; }});
  std::vector<std::unique_ptr<RawSocket>> sockets;
  for (const auto& [number, initiates] : {std::pair<uint8_t, bool>{1, false}, {1, true}, {2, true}}) {
    sockets.push_back(std::make_unique<RawSocket>(meeting.listener->endpoint()));
    sockets.back()->send(relay_preamble({ticket(number), initiates}));
  }
  ASSERT_TRUE(meeting.run_until([&] {
    const auto stats = meeting.listener->stats();
    return stats.open_relays == 1 && stats.open_connections == 3 && stats.open_handshakes == 0;
  }));
  meeting.listener.reset();
  bool is_over = false;
  meeting.loop.post([&] { is_over = true; });
  ASSERT_TRUE(meeting.run_until([&] { return is_over; }));
  for (const auto& socket : sockets) EXPECT_TRUE(socket->is_closed());
}

}  // namespace
}  // namespace weft::net::test
