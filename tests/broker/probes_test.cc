// Links are measured between peers that have nothing to do, round by round; what comes of it is what plans
// are made with.
#include <gtest/gtest.h>

#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using proto::ProbeLink;
using proto::ProbeReport;
using std::chrono::milliseconds;
using std::chrono::seconds;

BrokerOptions measuring() {
  BrokerOptions options{.software = "0.1.0"};
  options.measures_links = true;
  options.draw_secret = [next = uint8_t{0}]() mutable { return proto::Secret{++next}; };
  return options;
}

class ProbesTest : public ::testing::Test {
 protected:
  std::vector<ProbeLink> asked(ConnectionId peer) const { return world.messages<ProbeLink>(peer); }
  void report(ConnectionId peer, double rate, Duration round_trip = milliseconds(10)) {
    const ProbeLink link = asked(peer).back();
    world.receive(
        peer,
        ProbeReport{
            .round = link.round, .peer = link.peer, .bytes_per_second = rate, .round_trip = round_trip});
  }
  void refuse(ConnectionId peer, ErrorCode code) {
    const ProbeLink link = asked(peer).back();
    world.receive(peer, ProbeReport{.round = link.round, .peer = link.peer, .failure = Error{code, "no"}});
  }
  // All that is asked, as fast as it is asked; connections are keys.
  void measure_all(double rate) {
    std::map<ConnectionId, size_t> answered;
    for (bool more = true; more;) {
      more = false;
      for (ConnectionId peer = 1; peer <= 9; ++peer)
        if (asked(peer).size() > answered[peer]) {
          answered[peer] = asked(peer).size();
          report(peer, rate);
          more = true;
        }
    }
  }
  proto::LinkList links() {
    const size_t before = world.messages<proto::LinkList>(100).size();
    if (!is_client_) world.step(Introduced{100, key(200), "test", client(), TokenVerdict::Valid});
    is_client_ = true;
    world.receive(100, proto::ListLinks{});
    const auto lists = world.messages<proto::LinkList>(100);
    EXPECT_EQ(lists.size(), before + 1);
    return lists.back();
  }
  static proto::Hello client() {
    proto::Hello hello;
    hello.role = proto::Role::Submitter;
    return hello;
  }
  const proto::LinkFigure& figure(const proto::LinkList& list, uint8_t from, uint8_t to) const {
    for (const proto::LinkFigure& link : list.links)
      if (list.ends[link.from].peer == key(from) && list.ends[link.to].peer == key(to)) return link;
    throw std::out_of_range("no such link");
  }

  World world{{}, measuring()};
  bool is_client_ = false;
};

TEST_F(ProbesTest, BothEndsAreAskedAndEachSaysWhatItReceived) {
  world.join(1, 1);
  EXPECT_TRUE(asked(1).empty());
  world.join(2, 2);
  ASSERT_EQ(asked(1).size(), 1u);
  ASSERT_EQ(asked(2).size(), 1u);
  EXPECT_EQ(asked(1)[0].peer, key(2));
  EXPECT_EQ(asked(2)[0].peer, key(1));
  EXPECT_NE(asked(1)[0].dials, asked(2)[0].dials);
  EXPECT_EQ(asked(1)[0].relay_ticket, asked(2)[0].relay_ticket);
  EXPECT_EQ(asked(1)[0].round, asked(2)[0].round);
  EXPECT_TRUE(figure(links(), 1, 2).assumed);
  report(1, 3e6);
  report(2, 5e6, milliseconds(30));
  const auto list = links();
  EXPECT_FALSE(figure(list, 1, 2).assumed);
  EXPECT_DOUBLE_EQ(figure(list, 2, 1).bytes_per_second, 3e6);
  EXPECT_DOUBLE_EQ(figure(list, 1, 2).bytes_per_second, 5e6);
  EXPECT_EQ(asked(1).size(), 1u) << "all is known";
}

TEST_F(ProbesTest, NoPeerIsInTwoPairsOfARound) {
  for (uint8_t peer = 1; peer <= 6; ++peer) world.join(peer, peer);
  size_t most = 0;
  for (int turns = 0; turns < 100; ++turns) {
    std::map<uint64_t, std::set<ConnectionId>> busy;
    for (ConnectionId peer = 1; peer <= 6; ++peer)
      for (const ProbeLink& link : asked(peer))
        EXPECT_TRUE(busy[link.round].insert(peer).second) << "round " << link.round;
    for (const auto& [round, peers] : busy) most = std::max(most, peers.size());
    const auto last = busy.rbegin();
    for (const ConnectionId peer : last->second)
      if (asked(peer).back().round == last->first) report(peer, 1e6);
  }
  EXPECT_EQ(most, 6u);
  const auto list = links();
  EXPECT_EQ(list.links.size(), 30u);
  for (const proto::LinkFigure& link : list.links) EXPECT_FALSE(link.assumed);
}

TEST_F(ProbesTest, AJobWaitsForTheLinksAndIsPlannedWithThem) {
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  EXPECT_EQ(world.states.at(1), JobState::Waiting);
  EXPECT_NE(world.events.back().text.find("2 peers are being measured"), std::string::npos)
      << world.events.back().text;
  EXPECT_TRUE(world.plannings.empty());
  report(1, 1e6);
  EXPECT_TRUE(world.plannings.empty());
  world.step(Tick{});
  EXPECT_TRUE(world.plannings.empty()) << "the other direction is under way";
  report(2, 2e6);
  ASSERT_EQ(world.plannings.size(), 1u);
  const plan::ClusterView& cluster = world.plannings[0].cluster;
  ASSERT_EQ(cluster.devices().size(), 2u);
  EXPECT_EQ(world.plannings[0].candidates[0].peer, key(1));
  EXPECT_NEAR(cluster.link(1, 0).bytes_per_second, 1e6, 0.05e6);
  EXPECT_NEAR(cluster.link(0, 1).bytes_per_second, 2e6, 0.1e6);
}

TEST_F(ProbesTest, AJobWaitsNoLongerThanThatAndTakesTheRestAsSlow) {
  world.join(1, 1);
  world.join(2, 2);
  world.submit(100, 2);
  world.wait(seconds(5));
  EXPECT_TRUE(world.plannings.empty());
  for (int i = 0; i < 8; ++i) {  // heard, and silent about the link
    for (const ConnectionId peer : {1, 2}) world.receive(peer, proto::Heartbeat{});
    world.wait(seconds(2));
  }
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_TRUE(world.plannings[0].cluster.link(0, 1).is_assumed);
}

TEST_F(ProbesTest, WhoDoesNotAnswerIsLeftAloneForAWhile) {
  world.join(1, 1);
  world.join(2, 2);
  report(1, 1e6);
  const auto alive = [&](Duration duration) {
    for (; duration > Duration::zero(); duration -= seconds(1)) {
      for (const ConnectionId peer : {1, 2, 3}) world.receive(peer, proto::Heartbeat{});
      world.wait(seconds(1));
    }
  };
  alive(seconds(20));
  EXPECT_EQ(asked(2).size(), 1u);
  world.join(3, 3);
  ASSERT_EQ(asked(3).size(), 1u);
  EXPECT_EQ(asked(3)[0].peer, key(1)) << "others are measured meanwhile";
  report(1, 1e6);
  report(3, 1e6);
  alive(seconds(30));
  EXPECT_GT(asked(2).size(), 1u) << "and it is asked again";
}

TEST_F(ProbesTest, WhoWasGivenAStageMeanwhileIsAskedAgainSoon) {
  world.join(1, 1);
  world.join(2, 2);
  const auto turns_until_asked = [&](size_t before) {
    int turns = 0;
    for (; turns < 100 && asked(1).size() == before; ++turns) {
      for (const ConnectionId peer : {1, 2}) world.receive(peer, proto::Heartbeat{});
      world.wait(milliseconds(500));
    }
    return turns;
  };
  refuse(1, ErrorCode::Cancelled);
  EXPECT_EQ(asked(1).size(), 1u) << "not at once, or it could be made to go on for ever";
  EXPECT_LE(turns_until_asked(1), 4);
  refuse(1, ErrorCode::ResourceExhausted);
  EXPECT_GE(turns_until_asked(2), 40) << "any other reason may last";
}

TEST_F(ProbesTest, AReportCountsForThePairAndRoundThatWereAsked) {
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  const ProbeLink link = asked(1).back();
  ASSERT_EQ(link.peer, key(2));
  const uint64_t dropped = world.broker.counters().stale_dropped;
  world.receive(3, ProbeReport{.round = link.round, .peer = key(1), .bytes_per_second = 9e9});
  world.receive(1, ProbeReport{.round = link.round + 1, .peer = key(2), .bytes_per_second = 9e9});
  world.receive(1, ProbeReport{.round = link.round, .peer = key(3), .bytes_per_second = 9e9});
  EXPECT_EQ(world.broker.counters().stale_dropped, dropped + 3);
  report(1, 1e6);
  world.receive(1, ProbeReport{.round = link.round, .peer = key(2), .bytes_per_second = 9e9});  // twice
  EXPECT_EQ(world.broker.counters().stale_dropped, dropped + 4);
  EXPECT_DOUBLE_EQ(figure(links(), 2, 1).bytes_per_second, 1e6);
  EXPECT_TRUE(figure(links(), 3, 1).assumed);
  EXPECT_TRUE(world.closed.empty());
}

TEST_F(ProbesTest, NumbersThatCannotBeAreBroughtWithinBounds) {
  world.join(1, 1);
  world.join(2, 2);
  report(1, 1e300, std::chrono::hours(100));
  report(2, 0);
  const auto list = links();
  EXPECT_LE(figure(list, 2, 1).bytes_per_second, 125e9);
  EXPECT_LE(figure(list, 2, 1).latency, seconds(60));
  EXPECT_GE(figure(list, 1, 2).bytes_per_second, 1);
}

TEST_F(ProbesTest, WhereThereIsNoWayItIsKnown) {
  world.join(1, 1);
  world.join(2, 2);
  const ConnectionId dials = asked(1)[0].dials ? 1 : 2;
  refuse(3 - dials, ErrorCode::Timeout);  // nobody came; why, only the other can tell
  refuse(dials, ErrorCode::Unavailable);
  EXPECT_FALSE(figure(links(), 1, 2).assumed);
  EXPECT_LT(figure(links(), 1, 2).bytes_per_second, 1e5);
  EXPECT_EQ(asked(1).size(), 1u);
}

TEST_F(ProbesTest, APeerAtWorkIsNotAsked) {
  world.join(1, 1);
  world.join(2, 2);
  measure_all(1e6);
  world.submit(100, 2);
  world.plan_and_ready(2, 10);
  const size_t before = asked(1).size() + asked(2).size();
  world.join(3, 3);
  world.wait(seconds(1));
  EXPECT_EQ(asked(1).size() + asked(2).size(), before);
  EXPECT_TRUE(asked(3).empty());
}

TEST_F(ProbesTest, APeerThatGoesEndsItsProbe) {
  for (uint8_t peer = 1; peer <= 3; ++peer) world.join(peer, peer);
  world.step(Disconnected{2, "gone"});
  EXPECT_EQ(asked(3).size(), 1u) << "the round is over, the next begins";
  EXPECT_EQ(asked(3)[0].peer, key(1));
}

TEST_F(ProbesTest, APeerOfAnEarlierProtocolIsNotAsked) {
  world.join(1, 1);
  proto::Hello hello;
  hello.minor = 1;
  hello.name = "old";
  hello.device =
      proto::DeviceReport{.device = "cpu:1", .threads = 1, .memory = {1 << 30}, .fingerprint = "f"};
  world.step(Introduced{2, key(2), "test", hello, TokenVerdict::Valid});
  EXPECT_TRUE(asked(2).empty());
  world.submit(100, 2);
  EXPECT_EQ(world.plannings.size(), 1u) << "and not waited for";
}

TEST_F(ProbesTest, WhoWaitsAtTheRelayIsFoundByItsTicket) {
  world.join(1, 1);
  world.join(2, 2);
  const ConnectionId accepts = asked(1)[0].dials ? 2 : 1;
  world.step(RelayWaiting{asked(1)[0].relay_ticket});
  ASSERT_EQ(world.messages<proto::RelayInvitation>(accepts).size(), 1u);
  EXPECT_EQ(world.messages<proto::RelayInvitation>(accepts)[0].run, 0u);
  EXPECT_TRUE(world.messages<proto::RelayInvitation>(3 - accepts).empty());
}

TEST(Probes, NobodyIsAskedWhereLinksAreAssumed) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  EXPECT_TRUE(world.messages<ProbeLink>(1).empty());
  world.submit(100, 2);
  ASSERT_EQ(world.plannings.size(), 1u);
  EXPECT_TRUE(world.plannings[0].cluster.link(0, 1).is_assumed);
}

}  // namespace
}  // namespace weft::broker
