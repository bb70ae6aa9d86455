// What a broker says of its peers and of itself to whoever looks after it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "broker/figures.h"
#include "tests/broker/world.h"

namespace weft::broker {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

class Watching : public ::testing::Test {
 protected:
  proto::PeerList list(proto::Role role = proto::Role::Admin) {
    const ConnectionId connection = role == proto::Role::Admin ? 101 : 102;
    proto::Hello hello;
    hello.role = role;
    world.step(Introduced{connection, key(static_cast<uint8_t>(connection)), "test", hello,
                          TokenVerdict::Valid, role});
    world.receive(connection, proto::ListPeers{});
    const auto lists = world.messages<proto::PeerList>(connection);
    return lists.empty() ? proto::PeerList{} : lists.back();
  }
  proto::PeerStatus peer(const std::string& name) {
    for (const proto::PeerStatus& one : list().peers)
      if (one.name == name) return one;
    ADD_FAILURE() << "no peer " << name;
    return {};
  }
  double peers_that_are(const std::string& state) {
    return world.broker.metrics().value("weft_peers", {{"state", state}});
  }
  void join_with_address(ConnectionId connection, uint8_t who) {
    proto::Hello hello;
    hello.name = "peer" + std::to_string(who);
    hello.device = proto::DeviceReport{.device = "cpu:1",
                                       .threads = 1,
                                       .memory = {1 << 30},
                                       .fingerprint = "f",
                                       .addresses = {"192.0.2.1:" + std::to_string(7000 + who)}};
    world.step(Introduced{connection, key(who), "test", hello, TokenVerdict::Valid});
  }

  static BrokerOptions measuring() {
    BrokerOptions options{.software = "0.1.0"};
    options.measures_links = true;
    options.draw_secret = [] { return proto::Secret{1}; };
    return options;
  }
  World world{{}, measuring()};
};

TEST_F(Watching, WhoSaysThatItReturnsIsPausedAndSaysWhy) {
  for (const uint8_t who : {1, 2, 3}) world.join(who, who);
  world.receive(1, proto::Drain{.reason = "on battery", .returns = true});
  world.receive(2, proto::Drain{});
  for (const ConnectionId connection : {1, 2, 3}) world.step(Disconnected{connection, "closed"});
  EXPECT_EQ(peer("peer1").state, "paused");
  EXPECT_EQ(peer("peer1").reason, "on battery");
  EXPECT_EQ(peer("peer2").state, "left");
  EXPECT_EQ(peer("peer3").state, "gone");
  EXPECT_EQ(peers_that_are("paused"), 1);
  EXPECT_EQ(peers_that_are("pool"), 0);
  world.join(11, 1);
  EXPECT_EQ(peer("peer1").state, "pool");
  EXPECT_EQ(peer("peer1").reason, "");
  EXPECT_EQ(peers_that_are("pool"), 1);
}

TEST_F(Watching, WhoIsGoneForAWeekIsListedNoMore) {
  world.join(1, 1);
  world.join(2, 2);
  world.step(Disconnected{1, "closed"});
  world.wait(hours(24 * 6));
  EXPECT_EQ(peer("peer1").state, "gone");
  world.wait(hours(25));
  const auto peers = list().peers;
  EXPECT_TRUE(std::ranges::none_of(peers, [](const auto& one) { return one.name == "peer1"; }));
}

// The address is what a peer says of itself; whether it answers others find out.
TEST_F(Watching, APeerIsReachedAsOthersFoundIt) {
  join_with_address(1, 1);
  EXPECT_EQ(peer("peer1").reach, proto::Reach::Untried);
  world.join(2, 2);
  EXPECT_EQ(peer("peer2").reach, proto::Reach::Relay);
  const auto probe = world.messages<proto::ProbeLink>(2).back();
  ASSERT_TRUE(probe.dials) << "who cannot be dialled dials";
  world.receive(2, proto::ProbeReport{.round = probe.round,
                                      .peer = key(1),
                                      .bytes_per_second = 1e6,
                                      .round_trip = milliseconds(10),
                                      .relayed = true});
  EXPECT_EQ(peer("peer1").reach, proto::Reach::Closed);
}

TEST_F(Watching, ARunSaysHowItsTensorsGo) {
  join_with_address(1, 1);
  join_with_address(2, 2);
  for (const ConnectionId peer : {1, 2}) {
    const auto probe = world.messages<proto::ProbeLink>(peer).back();
    world.receive(peer, proto::ProbeReport{.round = probe.round,
                                           .peer = key(peer == 1 ? 2 : 1),
                                           .bytes_per_second = 1e6,
                                           .round_trip = milliseconds(10)});
  }
  const uint8_t dialled = world.messages<proto::ProbeLink>(1).back().dials ? 2 : 1;
  EXPECT_EQ(peer("peer" + std::to_string(dialled)).reach, proto::Reach::Direct);
  world.submit(100, 2);
  world.plan_and_ready(2, 10);
  proto::StepReport report{
      .run = 1, .plan_version = world.version, .step = 1, .squares = {4.0}, .updated = true};
  report.links = {{.seat = {1}, .bytes_sent = 1000, .way = proto::LinkWay::Relay}};
  world.receive(world.peers[0], report);
  world.receive(100, proto::ListLinks{});
  const auto links = world.messages<proto::LinkList>(100).back();
  const auto from_first = std::ranges::find_if(links.links, [&](const proto::LinkFigure& link) {
    return links.ends[link.from].peer == key(static_cast<uint8_t>(world.peers[0]));
  });
  ASSERT_NE(from_first, links.links.end());
  EXPECT_TRUE(from_first->relayed) << "the probe went directly, and the run's tensors do not";
  EXPECT_TRUE(from_first->in_use);
  const std::string from = "peer" + std::to_string(world.peers[0]),
                    to = "peer" + std::to_string(world.peers[1]);
  EXPECT_EQ(world.broker.metrics().value("weft_link_sent_bytes_total", {{"from", from}, {"to", to}}), 1000);
}

TEST(Admins, OnlyAnAdminLearnsWhoseStagesAPeerHasAndOfTheDisk) {
  World running;
  running.run_two_stages(10);
  running.step(Tick{.heard_until = {}, .disk = DiskState{.blobs = {5}, .free = {7}, .size = {9}}});
  const auto ask = [&](proto::Role role) {
    proto::Hello hello;
    hello.role = role;
    running.step(Introduced{150, key(150), "test", hello, TokenVerdict::Valid, role});
    running.receive(150, proto::ListPeers{});
    return running.messages<proto::PeerList>(150).back();
  };
  const auto user = ask(proto::Role::Submitter);
  EXPECT_TRUE(user.peers.at(0).jobs.empty());
  EXPECT_EQ(user.disk_size.value, 0);
  const auto admin = ask(proto::Role::Admin);
  EXPECT_EQ(admin.peers.at(0).jobs, std::vector<proto::JobNumber>{1});
  EXPECT_EQ(admin.disk_free.value, 7);
  EXPECT_EQ(running.broker.metrics().value("weft_blob_bytes"), 5);
}

TEST(Figures, AKilledPeerIsOneRecovery) {
  World world;
  world.join(3, 3);
  world.run_two_stages(100);
  world.report_step(1);
  EXPECT_EQ(world.broker.metrics().value("weft_recoveries_total"), 0);
  EXPECT_EQ(world.broker.metrics().value("weft_job_step", {{"job", "1"}}), 1);
  world.step(Disconnected{world.peers[0], "killed"});
  EXPECT_EQ(world.broker.metrics().value("weft_recoveries_total"), 1);
}

size_t series_of(const Metrics& metrics) {
  size_t count = 0;
  for (const auto& [name, family] : metrics.families()) count += family.samples.size();
  return count;
}

TEST(Figures, AThousandJobsLeaveNoSeries) {
  World world;
  world.join(1, 1);
  world.join(2, 2);
  size_t most = 0;
  proto::Hello hello;
  hello.role = proto::Role::Submitter;
  world.step(Introduced{100, key(200), "test", hello, TokenVerdict::Valid});
  for (int i = 1; i <= 1000; ++i) {
    world.step(SubmissionChecked{100, proto::SubmitJob{.name = "job", .stages = 2}, {}});
    world.receive(100, proto::StopJob{static_cast<proto::JobNumber>(i)});
    world.plannings.clear();
    most = std::max(most, series_of(world.broker.metrics()));
  }
  const size_t after = series_of(world.broker.metrics());
  EXPECT_LT(most, 60u);
  EXPECT_LE(after, most);
  EXPECT_EQ(world.broker.metrics().families().at("weft_job_step").samples.size(), 0u);
}

TEST(Figures, LinksLeaveWithTheLastJobThatUsedThem) {
  Figures figures;
  figures.on_sent(1, "a", "b", 10);
  figures.on_sent(2, "a", "b", 5);
  figures.on_sent(2, "b", "a", 7);
  figures.forget(2);
  const Labels ab{{"from", "a"}, {"to", "b"}};
  EXPECT_EQ(figures.metrics().value("weft_link_sent_bytes_total", ab), 15) << "a counter does not fall";
  EXPECT_EQ(figures.metrics().families().at("weft_link_sent_bytes_total").samples.size(), 1u);
  figures.forget(1);
  EXPECT_EQ(figures.metrics().families().at("weft_link_sent_bytes_total").samples.size(), 0u);
}

TEST(Figures, ManyLinksBecomeOneSeries) {
  Figures figures;
  for (size_t i = 0; i < Figures::kLinksMax + 100; ++i) figures.on_sent(1, "a", std::to_string(i), 1);
  const Metrics metrics = figures.metrics();
  EXPECT_EQ(metrics.families().at("weft_link_sent_bytes_total").samples.size(), Figures::kLinksMax + 1);
  EXPECT_EQ(metrics.value("weft_link_sent_bytes_total", {{"from", "other"}, {"to", "other"}}), 100);
}

}  // namespace
}  // namespace weft::broker
