// Links that nobody told of: measured by a broker's peers, shown to people, and planned with.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "broker/service/broker_service.h"
#include "cli/client.h"
#include "cli/link_table.h"
#include "cli/plan_cluster.h"
#include "peer/backend/reference/reference_backend.h"
#include "peer/service/peer_service.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {

using std::chrono::milliseconds;

// A peer on a loop and thread of its own, behind a line of so many Mbit/s each way.
class EmulatedPeer {
 public:
  EmulatedPeer(const net::Endpoint& broker, const security::Token& token, const std::string& name, double up,
               double down) {
    peer::PeerServiceOptions options;
    options.broker = broker;
    options.broker_key = token.broker;
    options.identity = identity_.get();
    options.hello.role = proto::Role::Peer;
    options.hello.name = name;
    options.hello.token = proto::TokenProof{token.id, token.secret.bytes};
    options.hello.device = {.device = "reference",
                            .rates = {1e9, 1e9, 1e9, 0},
                            .memory = Bytes{int64_t{1} << 30},
                            .fingerprint = device_->numerics_fingerprint(),
                            .traits = device_->traits(),
                            .region = "here"};
    options.listen = net::Endpoint{"127.0.0.1", 0};
    const net::Shape line{.uplink = net::AccessLine::make(up * 125e3),
                          .downlink = net::AccessLine::make(down * 125e3)};
    options.accepted_shape = line;
    options.shape = [line](const std::string& region) {
      net::Shape shape = line;
      if (!region.empty()) shape.send = shape.receive = {.bytes_per_second = 125e6, .delay = milliseconds(5)};
      return shape;
    };
    options.make_backend = [] { return peer::make_reference_backend(); };
    options.log = [](const std::string&) {};
    service_ = std::make_unique<peer::PeerService>(loop_, std::move(options));
    thread_ = std::thread([this] { (void)service_->run(); });
  }
  ~EmulatedPeer() {
    service_->stop();
    thread_.join();
  }

 private:
  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  std::unique_ptr<peer::Backend> device_ = peer::make_reference_backend();
  net::Loop loop_;
  std::unique_ptr<peer::PeerService> service_;
  std::thread thread_;
};

TEST(Links, OfThreePeersAreWhatTheEmulatorMakesThem) {
  const test::Scratch scratch;
  auto broker = broker::BrokerService::start({.data_dir = scratch.folder() / "broker",
                                              .listen = {"127.0.0.1", 0},
                                              .advertise = "",
                                              .log = [](const std::string&) {}});
  ASSERT_TRUE(broker.has_value()) << broker.error().message;
  const auto token = security::parse_token((*broker)->peer_token());
  ASSERT_TRUE(token.has_value());
  const std::vector<double> ups{8, 12, 100}, downs{16, 12, 50};
  std::vector<std::unique_ptr<EmulatedPeer>> peers;
  for (size_t i = 0; i < ups.size(); ++i)
    peers.push_back(std::make_unique<EmulatedPeer>((*broker)->endpoint(), *token, "p" + std::to_string(i),
                                                   ups[i], downs[i]));
  const auto submitter = security::parse_token(*(*broker)->submitter_token());
  ASSERT_TRUE(submitter.has_value());
  auto access = BrokerAccess::open(BrokerAddress{(*broker)->endpoint(), *submitter});
  ASSERT_TRUE(access.has_value());
  const auto client = (*access)->connect();
  ASSERT_TRUE(client.has_value()) << client.error().message;

  proto::LinkList list;
  const auto is_complete = [&] {
    return list.links.size() == 6 &&
           std::none_of(list.links.begin(), list.links.end(), [](const auto& link) { return link.assumed; });
  };
  for (int tries = 0; tries < 300 && !is_complete(); ++tries) {
    (*access)->pause(milliseconds(200));
    list = *(*client)->ask<proto::LinkList>(proto::ListLinks{});
  }
  ASSERT_TRUE(is_complete());
  const auto all = (*client)->ask<proto::PeerList>(proto::ListPeers{});
  ASSERT_TRUE(all.has_value());
  const auto cluster = cluster_of_peers(all->peers, "a broker", {}, list);
  ASSERT_TRUE(cluster.has_value());
  EXPECT_TRUE(cluster->notes.empty()) << cluster->notes[0];
  const auto& devices = cluster->view.devices();
  for (size_t from = 0; from < 3; ++from)
    for (size_t to = 0; to < 3; ++to) {
      if (from == to) continue;
      const auto number = [&](size_t device) {
        return static_cast<size_t>(std::stoul(devices[device].name.substr(1)));
      };
      const double is = std::min(ups[number(from)], downs[number(to)]);
      const plan::LinkView link = cluster->view.link(from, to);
      EXPECT_NEAR(link.bytes_per_second * 8e-6, is, 0.15 * is) << number(from) << " to " << number(to);
      EXPECT_NEAR(seconds(link.latency), 5e-3, 3e-3) << number(from) << " to " << number(to);
    }
  peers.clear();
  (*broker)->stop();
}

// ---- what is shown

proto::LinkList two_sites() {
  proto::LinkList list;
  for (uint32_t i = 0; i < 3; ++i) {
    proto::LinkEnd end{.name = "peer" + std::to_string(i), .region = "r", .site = i == 2 ? 1u : 0u};
    end.peer.digest.bytes[0] = static_cast<uint8_t>(i + 1);
    list.ends.push_back(end);
  }
  list.ends[2].uplink = 1e6;
  for (uint32_t from = 0; from < 2; ++from)
    for (uint32_t to = 0; to < 2; ++to)
      list.between.push_back(
          {.from = from, .to = to, .bytes_per_second = 12.5e6, .latency = milliseconds(7)});
  for (uint32_t from = 0; from < 3; ++from)
    for (uint32_t to = 0; to < 3; ++to)
      if (from != to)
        list.links.push_back({.from = from,
                              .to = to,
                              .bytes_per_second = from == 0 && to == 1 ? 1.25e6 : 12.5e6,
                              .latency = milliseconds(7),
                              .assumed = from == 0 && to == 1,
                              .relayed = from == 1 && to == 0,
                              .seconds_since = 60});
  return list;
}

TEST(LinkTable, MarksWhatIsAGuessAndTakesLinesIntoAccount) {
  const auto lines = link_table(two_sites());
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_NE(lines[2].find("~10M ~7ms"), std::string::npos) << lines[2];
  EXPECT_NE(lines[3].find("100Mr 7ms"), std::string::npos) << lines[3];
  EXPECT_NE(lines[4].find("8.0M 7ms"), std::string::npos) << lines[4];
  EXPECT_NE(lines[5].find("peer2: all its links together send 8.0M"), std::string::npos) << lines[5];
  EXPECT_NE(lines[6].find("5 of 6 links were measured"), std::string::npos) << lines[6];
}

TEST(LinkTable, OfManyPeersIsOfSites) {
  proto::LinkList list = two_sites();
  list.links.clear();
  const auto lines = link_table(list);
  EXPECT_NE(lines[1].find("site 1: peer0, peer1"), std::string::npos) << lines[1];
  EXPECT_NE(lines[4].find("100M 7ms"), std::string::npos) << lines[4];
}

TEST(LinkTable, EventsAreOneALine) {
  size_t assumed = 0, links = 0;
  for (const std::string& line : link_events(two_sites())) {
    const auto event = nlohmann::json::parse(line);
    if (event["event"] != "link") continue;
    ++links;
    assumed += event["assumed"] ? 1 : 0;
    EXPECT_EQ(event["seconds_since_measured"].is_null(), event["assumed"] == true);
    if (event["from"] == "peer2") {
      EXPECT_EQ(event["bytes_per_second"], 1e6);
    }
  }
  EXPECT_EQ(links, 6u);
  EXPECT_EQ(assumed, 1u);
}

TEST(PlanCluster, LinksAreThoseThatTheBrokerBelievesIn) {
  const proto::LinkList list = two_sites();
  std::vector<proto::PeerStatus> peers;
  for (const size_t i : {2, 0, 1})
    peers.push_back({.peer = list.ends[i].peer, .name = list.ends[i].name, .region = "r", .state = "pool"});
  const std::string added = "rtx3080@elsewhere";
  const auto cluster = cluster_of_peers(peers, "a broker", std::span(&added, 1), list);
  ASSERT_TRUE(cluster.has_value());
  const plan::ClusterView& view = cluster->view;
  EXPECT_EQ(view.link(0, 1).bytes_per_second, 1e6) << "the first one's uplink";
  EXPECT_EQ(view.link(1, 0).bytes_per_second, 12.5e6);
  EXPECT_EQ(view.link(1, 2).bytes_per_second, 1.25e6);
  EXPECT_TRUE(view.link(1, 2).is_assumed);
  EXPECT_TRUE(view.link(3, 1).is_assumed) << "nobody knows of what is added";
  EXPECT_EQ(cluster->notes.size(), 1u);
}

}  // namespace
}  // namespace weft::cli
