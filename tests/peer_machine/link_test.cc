// The machine of a link, alone.
#include "peer/machine/link.h"

#include <gtest/gtest.h>

#include "tests/peer_machine/link_ends.h"

namespace weft::peer {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

Result<uint64_t> refused() { return fail(ErrorCode::Unavailable, "connection refused"); }

// One end, and what it is given by hand.
struct One {
  explicit One(bool dials, std::vector<std::string> addresses = {"a", "b"})
      : One(stage(0), route_to(1, dials, std::move(addresses))) {}
  One(const proto::AssignStage& assignment, proto::LinkRoute route)
      : machine({.times = {}, .streams = 4, .draw_session = [] { return uint64_t{77}; }}, assignment,
                std::move(route), outbox) {}
  // Up over connection 1, which was dialled.
  LinkMachine::Effects bring_up(Duration round_trip = {}) {
    machine.start(now);
    now += 2 * round_trip;
    machine.on_dialled(now, uint64_t{1});
    now += round_trip;
    return machine.on_message(now, 1, proto::LinkReady{0, 4, 5});
  }
  Outbox outbox;
  LinkMachine machine;
  Instant now = kStart;
};

TEST(LinkMachine, WhoDialsTriesEachWayAndThenPausesLongerAndLonger) {
  One end(/*dials=*/true);
  auto effects = end.machine.start(end.now);
  std::vector<std::string> tried;
  std::vector<Duration> pauses;
  for (int attempt = 0; attempt < 24; ++attempt) {
    const auto dials = all_of<link_effects::Dial>(effects);
    ASSERT_EQ(dials.size(), 1u);
    tried.push_back(dials[0].address);
    const auto wakes = all_of<link_effects::Wake>(end.machine.on_dialled(end.now, refused()));
    ASSERT_EQ(wakes.size(), 1u);
    pauses.push_back(wakes[0].after);
    effects = end.machine.on_wake(end.now);
  }
  for (size_t i = 0; i < tried.size(); ++i) EXPECT_EQ(tried[i], (std::array{"a", "b", ""}[i % 3]));
  EXPECT_EQ(pauses[0], Duration{});
  EXPECT_EQ(pauses[1], Duration{});
  EXPECT_EQ(pauses[2], milliseconds(100));
  EXPECT_EQ(pauses[5], milliseconds(200));
  EXPECT_EQ(pauses.back(), LinkTimes{}.retry_delay_max);
}

// Both ends of a link over the relay may try other ways meanwhile, in windows that must meet.
TEST(LinkMachine, OfALinkThatWasUpEachWayHasTwoTurnsBeforeItHasFailed) {
  for (const size_t addresses : {0, 1, 2}) {
    SCOPED_TRACE(addresses);
    One end(/*dials=*/true, addresses == 0   ? std::vector<std::string>{}
                            : addresses == 1 ? std::vector<std::string>{"a"}
                                             : std::vector<std::string>{"a", "b"});
    EXPECT_EQ(all_of<link_effects::Dial>(end.machine.start(end.now)).at(0).deadline,
              LinkTimes{}.address_deadline);
    end.machine.on_dialled(end.now, uint64_t{1});
    end.machine.on_message(end.now, 1, proto::LinkReady{0, 4, 5});
    ASSERT_TRUE(end.machine.is_up());
    std::map<std::string, int> turns;
    std::vector<link_effects::Fail> fails;
    auto effects = end.machine.on_lost(end.now, 1, {ErrorCode::Unavailable, "cut"});
    while (fails.empty()) {
      const auto wakes = all_of<link_effects::Wake>(effects);
      ASSERT_EQ(wakes.size(), 1u);
      end.now += wakes[0].after;
      const auto dials = all_of<link_effects::Dial>(end.machine.on_wake(end.now));
      ASSERT_EQ(dials.size(), 1u);
      ++turns[dials[0].address];
      const Instant until = end.now + dials[0].deadline;
      while (end.now < until && fails.empty())
        fails = all_of<link_effects::Fail>(end.machine.on_tick(end.now += milliseconds(50)));
      effects = end.machine.on_dialled(end.now, refused());
    }
    EXPECT_EQ(turns.size(), addresses + 1);
    for (const auto& [address, count] : turns) EXPECT_GE(count, 2) << "'" << address << "'";
  }
}

TEST(LinkMachine, WhoIsDialledWaitsOrComesToTheRelayWhenInvited) {
  One end(/*dials=*/false);
  EXPECT_TRUE(end.machine.start(end.now).empty());
  EXPECT_TRUE(end.machine.on_invited(end.now, {9}).empty());
  const auto dials = all_of<link_effects::Dial>(end.machine.on_invited(end.now, kTicket));
  ASSERT_EQ(dials.size(), 1u);
  EXPECT_EQ(dials[0].address, "");
  EXPECT_TRUE(end.machine.on_invited(end.now, kTicket).empty()) << "it is on its way";
  EXPECT_TRUE(end.machine.on_dialled(end.now, refused()).empty()) << "the other side comes again";
}

TEST(LinkMachine, OnlyItsOwnPlanAndNeighbourIsTaken) {
  One end(/*dials=*/false);
  const proto::LinkHello hello{.run = 1, .plan_version = 2, .seat = {1}, .streams = 4};
  EXPECT_TRUE(end.machine.wants(kOther, hello));
  EXPECT_FALSE(end.machine.wants(PeerId{}, hello));
  auto older = hello;
  older.plan_version = 1;
  EXPECT_FALSE(end.machine.wants(kOther, older));
  auto elsewhere = hello;
  elsewhere.seat = {2};
  EXPECT_FALSE(end.machine.wants(kOther, elsewhere));
  EXPECT_FALSE(One(/*dials=*/true).machine.wants(kOther, hello)) << "this side dials";
}

TEST(LinkMachine, SilenceEndsAConnectionAndTheLinkOnlyAfterItsDeadline) {
  One end(/*dials=*/true);
  ASSERT_EQ(all_of<link_effects::Begin>(end.bring_up()).size(), 1u);
  LinkMachine::Effects effects;
  const Instant up = end.now;
  while (end.machine.is_up()) effects = end.machine.on_tick(end.now += milliseconds(250));
  EXPECT_GT(end.now - up, LinkTimes{}.silence_deadline);
  EXPECT_EQ(all_of<link_effects::Close>(effects).size(), 1u);
  EXPECT_EQ(all_of<link_effects::EndSession>(effects).size(), 1u);
  ASSERT_EQ(all_of<link_effects::Wake>(effects).size(), 1u) << "it dials again";
  const Instant down = end.now;
  std::vector<link_effects::Fail> fails;
  while (fails.empty()) fails = all_of<link_effects::Fail>(end.machine.on_tick(end.now += milliseconds(250)));
  EXPECT_GT(end.now - down, LinkTimes{}.heal_deadline);
  EXPECT_NE(fails[0].error.message.find("nothing came for 10 s"), std::string::npos)
      << fails[0].error.message;
  EXPECT_TRUE(end.machine.on_tick(end.now + hours(1)).empty()) << "it has failed once";
}

// Replicas that make local steps need it when they agree; then they wait for the broker to say who goes on
// without whom.
TEST(LinkMachine, BetweenReplicasWithLocalStepsALinkHasLonger) {
  for (const bool are_local : {false, true})
    for (const uint32_t replica : {0u, 1u}) {
      const bool is_patient = are_local && replica == 1;
      proto::AssignStage assignment = stage(0);
      if (are_local) assignment.local.emplace();
      proto::LinkRoute route = route_to(1, /*dials=*/true, {"a"});
      route.seat.replica = replica;
      One end(assignment, route);
      end.bring_up();
      while (end.machine.is_up()) end.machine.on_tick(end.now += milliseconds(250));
      if (is_patient) {
        for (const Instant until = end.now + hours(1); end.now < until;)
          ASSERT_TRUE(all_of<link_effects::Fail>(end.machine.on_tick(end.now += milliseconds(250))).empty())
              << "there is nothing to be sent";
      }
      ASSERT_TRUE(end.outbox.ledger.keep(0, 100));
      const Instant since = end.now;
      while (all_of<link_effects::Fail>(end.machine.on_tick(end.now += milliseconds(250))).empty()) {
      }
      const LinkTimes times;
      const Duration expected = is_patient ? times.heal_deadline_of_replicas : times.heal_deadline;
      EXPECT_GT(end.now - since, expected - seconds(1));
      EXPECT_LE(end.now - since, expected + seconds(1));
    }
}

TEST(LinkMachine, AConnectionThatBringsBytesIsNotSilentAndIsAcknowledged) {
  One end(/*dials=*/true);
  end.bring_up();
  size_t acks = 0;
  for (int tick = 0; tick < 240; ++tick) {
    end.machine.on_bytes(end.now, 1);  // of a tensor that takes a minute
    const auto effects = end.machine.on_tick(end.now += milliseconds(250));
    acks += said<proto::LinkAck>(effects).has_value() ? 1 : 0;
  }
  EXPECT_TRUE(end.machine.is_up());
  EXPECT_EQ(acks, 60u) << "a sign of life each second";
}

TEST(LinkMachine, WhoSleptBlamesNobody) {
  One end(/*dials=*/true);
  end.bring_up();
  end.machine.on_tick(end.now += milliseconds(250));
  end.machine.on_tick(end.now += hours(1));
  EXPECT_TRUE(end.machine.is_up());
}

TEST(LinkMachine, CountsThatCannotBeEndTheLink) {
  One end(/*dials=*/true);
  end.bring_up();
  const auto effects = end.machine.on_message(end.now, 1, proto::LinkAck{3});
  ASSERT_EQ(all_of<link_effects::Fail>(effects).size(), 1u) << "nothing was sent";
  EXPECT_TRUE(end.machine.on_message(end.now, 1, proto::LinkAck{4}).empty());

  One again(/*dials=*/true);
  again.bring_up();
  ASSERT_TRUE(again.outbox.ledger.keep(1, 10));
  ASSERT_TRUE(again.outbox.ledger.keep(2, 10));
  EXPECT_TRUE(again.machine.on_message(again.now, 1, proto::LinkAck{2}).empty());
  again.machine.on_lost(again.now, 1, {ErrorCode::Unavailable, "cut"});
  again.machine.on_wake(again.now);
  again.machine.on_dialled(again.now, uint64_t{2});
  const auto forgot = again.machine.on_message(again.now, 2, proto::LinkReady{1, 4, 6});
  EXPECT_TRUE(all_of<link_effects::Begin>(forgot).empty()) << "the other side has lost what it had";
  EXPECT_EQ(all_of<link_effects::Close>(forgot).size(), 1u);
}

TEST(LinkMachine, FurtherConnectionsAreForThoseFarAwayAndOfOneSession) {
  One near(/*dials=*/true);
  EXPECT_TRUE(all_of<link_effects::DialStream>(near.bring_up()).empty());
  One far(/*dials=*/true);
  EXPECT_EQ(all_of<link_effects::DialStream>(far.bring_up(milliseconds(20))).size(), 3u);
  const auto hello = said<proto::LinkHello>(far.machine.on_stream_dialled(far.now, 1, uint64_t{2}));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->session, 5u);
  EXPECT_FALSE(far.machine.carries(2));
  EXPECT_EQ(
      all_of<link_effects::BeginStream>(far.machine.on_message(far.now, 2, proto::LinkReady{0, 4, 5})).size(),
      1u);
  EXPECT_TRUE(far.machine.carries(2));

  One other(/*dials=*/false);
  proto::LinkHello first{.run = 1, .plan_version = 2, .seat = {1}, .streams = 4};
  const auto ready = said<proto::LinkReady>(other.machine.on_accepted(other.now, 1, first));
  ASSERT_TRUE(ready);
  EXPECT_EQ(ready->session, 77u);
  auto stale = first;
  stale.stream = 1;
  stale.session = 76;
  EXPECT_EQ(all_of<link_effects::Close>(other.machine.on_accepted(other.now, 2, stale)).size(), 1u);
  stale.session = 77;
  EXPECT_EQ(all_of<link_effects::BeginStream>(other.machine.on_accepted(other.now, 3, stale)).size(), 1u);
  // One of them ends: all do.
  EXPECT_EQ(all_of<link_effects::Close>(other.machine.on_lost(other.now, 3, {ErrorCode::Unavailable, "cut"}))
                .size(),
            2u);
}

}  // namespace
}  // namespace weft::peer
