// What `weft doctor` says of the way to a broker: from what was seen to the line, and over real sockets
// against brokers with a wrong clock or another key, and against what is no broker.
#include <gtest/gtest.h>
#include <csignal>

#include <cstdlib>
#include <future>
#include <thread>

#include "cli/doctor/named_peer.h"
#include "cli/doctor/way.h"
#include "cli/json_event.h"
#include "net/byte_listener.h"
#include "net/listener.h"
#include "peer/service/bulk.h"
#include "proto/codec/codec.h"
#include "tests/support/scratch.h"
#include "tests/web/certificate.h"
#include "tests/web/fake_service.h"
#include "web/api.h"
#include "web/server.h"

namespace weft::cli {
namespace {

using net::Answerer;
using net::Endpoint;

void expect(const Check& check, CheckState state, const std::string& seen, const std::string& advice = "") {
  EXPECT_EQ(check.state, state) << check_line(check);
  EXPECT_NE(check.seen.find(seen), std::string::npos) << check_line(check);
  EXPECT_NE(check.advice.find(advice), std::string::npos) << check_line(check);
}
Result<Duration> answers() { return Duration(std::chrono::milliseconds(12)); }
Result<Duration> is_silent(ErrorCode code = ErrorCode::Timeout) { return fail(code, "no answer"); }
PeerId key(uint8_t number) {
  PeerId id;
  id.digest.bytes.fill(number);
  return id;
}

TEST(DoctorWay, ANameThatIsUnknownAndANameServerThatIsSilentAreTwoThings) {
  const Endpoint broker{"broker.example.org", 7700};
  expect(check_name(broker, fail(ErrorCode::NotFound, "Name or service not known")), CheckState::Stops,
         "cannot be looked up", "how it is written");
  expect(check_name(broker, fail(ErrorCode::Timeout, "no name server answers")), CheckState::Stops,
         "no name server", "online");
  expect(check_name(broker, std::vector<Endpoint>{{"192.0.2.1", 7700}, {"2001:db8::1", 7700}}),
         CheckState::Ok, "192.0.2.1, 2001:db8::1");
  expect(check_name({"192.0.2.1", 7700}, std::vector<Endpoint>{{"192.0.2.1", 7700}}), CheckState::Ok,
         "is an address");
}

TEST(DoctorWay, ADeadIpv6IsAWarningAsLongAsIpv4Works) {
  const Endpoint six{"2001:db8::1", 7700}, four{"192.0.2.1", 7700};
  const Checks checks = check_dials({{six, is_silent()}, {four, answers()}});
  ASSERT_EQ(checks.size(), 2u);
  expect(checks[0], CheckState::Warning, "IPv6 [2001:db8::1]:7700 does not answer", "mend IPv6");
  expect(checks[1], CheckState::Ok, "IPv4 192.0.2.1:7700 answers in 12 ms");
}

TEST(DoctorWay, NoAddressThatAnswersStopsWorkForItsReason) {
  const Endpoint four{"192.0.2.1", 7700};
  expect(check_dials({{four, is_silent()}})[0], CheckState::Stops, "does not answer", "firewall");
  expect(check_dials({{four, is_silent(ErrorCode::Unavailable)}})[0], CheckState::Stops, "does not answer",
         "whether the broker runs");
  expect(check_dials({{four, is_silent(ErrorCode::PermissionDenied)}})[0], CheckState::Stops,
         "does not answer", "this machine's firewall");
}

TEST(DoctorWay, WhatIsNoBrokerIsCalledByItsName) {
  const auto said = [](Answerer::Kind kind, const std::string& says) {
    const Checks checks = check_answerer(Answerer{.kind = kind, .says = says}, key(1));
    EXPECT_EQ(checks.size(), 1u);
    return checks.at(0);
  };
  expect(said(Answerer::Kind::Http, "HTTP/1.1 302 Found"), CheckState::Stops, "captive portal or proxy",
         "log in");
  expect(said(Answerer::Kind::OtherTls, "the certificate of box"), CheckState::Stops,
         "a proxy that reads TLS");
  expect(said(Answerer::Kind::Other, "SSH-2.0-x"), CheckState::Stops, "SSH-2.0-x", "port");
  expect(said(Answerer::Kind::Silent, ""), CheckState::Stops, "silent", "port");
}

TEST(DoctorWay, AnotherKeyThanTheTokensStopsWork) {
  const Answerer answerer{.kind = Answerer::Kind::Weft, .key = key(2)};
  expect(check_answerer(answerer, key(2)).at(1), CheckState::Ok, "the key that the token names");
  expect(check_answerer(answerer, key(1)).at(1), CheckState::Stops, "020202020202 and not 010101010101",
         "set up anew");
  expect(check_answerer(answerer, std::nullopt).at(1), CheckState::Warning, "020202020202", "--token");
}

TEST(DoctorWay, ATokenThatIsRefusedIsRefusedForTheBrokersReason) {
  expect(check_token(security::Role::Peer, proto::HelloAck{}), CheckState::Ok, "a peer in");
  expect(check_token(security::Role::Peer, fail(ErrorCode::PermissionDenied, "the token has expired")),
         CheckState::Stops, "the token has expired", "weft token create --role peer");
  expect(check_token(security::Role::Peer, fail(ErrorCode::VersionMismatch, "install weft 9")),
         CheckState::Stops, "install weft 9", "the version that the broker has");
}

TEST(DoctorWay, AClockIsWrongByWhatTheQuestionCannotExplain) {
  expect(check_clock(1'000'000, 1'000'000, 1'000'100), CheckState::Ok, "as the broker's");
  expect(check_clock(1'000'000, 995'000, 1'009'000), CheckState::Ok, "as the broker's");
  expect(check_clock(1'000'000, 1'003'900, 1'004'000), CheckState::Ok, "as the broker's");
  expect(check_clock(1'000'000, 4'600'000, 4'600'100), CheckState::Warning, "1h 00m ahead of the broker's",
         "timedatectl");
  expect(check_clock(4'600'000, 1'000'000, 1'000'100), CheckState::Warning, "1h 00m behind the broker's");
  expect(check_clock(0, 1'000'000, 1'000'100), CheckState::Ok, "not compared");
}

TEST(DoctorWay, ANatIsSeenByTheAddressThatTheBrokerSees) {
  const auto is_own = [](const std::string& host) { return host == "10.0.0.2"; };
  expect(check_reach("10.0.0.2:4711", "10.0.0.2:4711", is_own), CheckState::Ok, "an address of this machine");
  expect(check_reach("198.51.100.7:4711", "10.0.0.2:4711", is_own), CheckState::Warning,
         "a NAT is between, which keeps ports", "--advertise 198.51.100.7:7701");
  expect(check_reach("198.51.100.7:1025", "10.0.0.2:4711", is_own), CheckState::Warning,
         "which changes ports (4711 became 1025), as a symmetric one does", "--listen");
  expect(check_reach("", "10.0.0.2:4711", is_own), CheckState::Ok, "not known");
  expect(check_reach("[::1]:4711", "[::1]:4711", is_own), CheckState::Ok, "the broker is on this machine");
}

TEST(DoctorWay, ASlowLineAndAnOlderVersionAreWarnings) {
  expect(check_rate("uplink", 2.5e6), CheckState::Ok, "20 Mbit/s");
  expect(check_rate("uplink", 2.5e4), CheckState::Warning, "0.2 Mbit/s", "another line");
  expect(check_rate("downlink", fail(ErrorCode::Timeout, "no answer")), CheckState::Warning, "not measured");
  proto::HelloAck broker{.software = "9.0"};
  expect(check_version(broker, "0.1"), CheckState::Ok, "weft 9.0");
  broker.minor = proto::kProtocolMinor + 1;
  expect(check_version(broker, "0.1"), CheckState::Warning, "weft 9.0", "newer");
}

// ---- a peer by name

struct OneOfThem {
  proto::PeerStatus peer{.peer = key(1), .name = "attic", .software = "1.0", .state = "pool"};
  proto::LinkList links{};
  Checks checks(const std::string& name = "attic") const { return check_peer(name, {{peer}}, links, "1.0"); }
};

TEST(DoctorPeer, IsFoundByNameAndByKey) {
  const OneOfThem one;
  expect(one.checks("attic").at(0), CheckState::Ok, "attic: pool");
  expect(one.checks("010101010101").at(0), CheckState::Ok, "attic: pool");
  expect(one.checks("01").at(0), CheckState::Stops, "no peer 01", "weft join");
}

TEST(DoctorPeer, WhatItDoesAndHowItIsReachedAreTheBrokersWords) {
  OneOfThem one;
  expect(one.checks().at(1), CheckState::Warning, "no address", "--listen");
  one.peer.reach = proto::Reach::Closed;
  expect(one.checks().at(1), CheckState::Warning, "does not answer", "firewall");
  one.peer.reach = proto::Reach::Direct;
  expect(one.checks().at(1), CheckState::Ok, "it answered");
  one.peer.state = "paused";
  one.peer.reason = "on battery";
  expect(one.checks().at(0), CheckState::Warning, "paused (on battery)", "weft pause --off");
  one.peer.state = "gone";
  expect(one.checks().at(0), CheckState::Stops, "gone", "weft doctor there");
  one.peer.software = "0.9";
  expect(one.checks().at(1), CheckState::Warning, "weft 0.9, the broker 1.0", "install");
}

TEST(DoctorPeer, ItsLinesAndLinksAreThoseOfTheList) {
  OneOfThem one;
  one.links.ends = {{.peer = key(9)}, {.peer = key(1), .uplink = 1.25e6}};
  one.links.links = {{.from = 1, .to = 0, .relayed = true}, {.from = 0, .to = 1}};
  const Checks checks = one.checks();
  ASSERT_EQ(checks.size(), 5u);
  expect(checks[2], CheckState::Ok, "10 Mbit/s");
  expect(checks[3], CheckState::Ok, "no limit");
  expect(checks[4], CheckState::Ok, "0 direct, 1 through the relay, 0 not measured");
}

// ---- over sockets

// A loop on a thread of its own, and what was made on it.
class Elsewhere {
 public:
  using Make = std::function<std::shared_ptr<void>(net::Loop&)>;
  explicit Elsewhere(const Make& make) {
    std::promise<net::Loop*> ready;
    thread_ = std::thread([&ready, make] {
      net::Loop loop;
      const auto made = make(loop);
      ready.set_value(&loop);
      loop.run();
    });
    loop_ = ready.get_future().get();
  }
  ~Elsewhere() {
    loop_->stop();
    thread_.join();
  }
  Elsewhere(const Elsewhere&) = delete;
  Elsewhere& operator=(const Elsewhere&) = delete;

 private:
  net::Loop* loop_ = nullptr;
  std::thread thread_;
};

// Grants every Hello with its answer, and holds what it is lent.
struct FakeBroker {
  std::unique_ptr<security::Identity> identity = *security::Identity::generate();
  std::unique_ptr<net::Listener> listener;
  proto::HelloAck ack;
  std::vector<net::ConnectionPtr> connections;
  std::map<Digest, std::vector<std::byte>> blobs;
  proto::PutBlob put;  // the one that comes

  void accept(const net::ConnectionPtr& connection) {
    connections.push_back(connection);
    connection->set_limits({.frame_size_max = proto::kMessageSizeMax});
    const std::weak_ptr<net::Connection> weak = connection;
    connection->start({.on_frame =
                           [this, weak](net::InFrame frame) {
                             if (const auto here = weak.lock()) hear(*here, frame);
                           },
                       .on_closed = [](const Error&) {}});
  }
  void hear(net::Connection& connection, const net::InFrame& frame) {
    if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) return take(connection, frame);
    const proto::Message message = proto::decode(frame.payload.span()).value();
    if (std::holds_alternative<proto::Hello>(message)) return send(connection, ack);
    if (const auto* have = std::get_if<proto::HaveBlobs>(&message))
      return send(connection, proto::MissingBlobs{have->request, {}});
    if (const auto* putting = std::get_if<proto::PutBlob>(&message)) put = *putting;
    if (const auto* getting = std::get_if<proto::GetBlob>(&message)) give(connection, *getting);
  }
  void take(net::Connection& connection, const net::InFrame& frame) {
    const auto chunk = proto::decode_chunk(frame.payload.span()).value();
    auto& bytes = blobs[put.sha256];
    bytes.insert(bytes.end(), chunk.bytes.begin(), chunk.bytes.end());
    if (bytes.size() == put.size) send(connection, proto::BlobAnswer{.request = put.request});
  }
  void give(net::Connection& connection, const proto::GetBlob& asked) {
    const auto& bytes = blobs[asked.sha256];
    send(connection, proto::BlobAnswer{.request = asked.request, .size = bytes.size()});
    for (size_t at = 0; at < bytes.size(); at += 1 << 20) {
      const auto piece = std::make_shared<std::vector<std::byte>>(
          bytes.begin() + static_cast<ptrdiff_t>(at),
          bytes.begin() + static_cast<ptrdiff_t>(std::min(bytes.size(), at + (1 << 20))));
      connection.send({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                       .head = proto::encode_chunk_head(asked.request),
                       .body = {piece, *piece}});
    }
  }
  static void send(net::Connection& connection, const proto::Message& message) {
    connection.send(peer::message_frame(message));
  }
};

class DoctorOverSockets : public testing::Test {
 protected:
  // As the program does: who writes to a connection that was closed is told by the write.
  static void SetUpTestSuite() { std::signal(SIGPIPE, SIG_IGN); }

  std::shared_ptr<FakeBroker> broker_ = std::make_shared<FakeBroker>();

  std::unique_ptr<Elsewhere> start_broker(const proto::HelloAck& ack) {
    broker_->ack = ack;
    return std::make_unique<Elsewhere>([this](net::Loop& loop) {
      broker_->listener = *net::Listener::open(
          loop, {"127.0.0.1", 0}, {.identity = broker_->identity.get(), .limits = {}, .shape = {}},
          [broker = broker_.get()](const net::ConnectionPtr& connection) { broker->accept(connection); });
      endpoint_ = broker_->listener->endpoint();
      return std::shared_ptr<void>(broker_.get(), [](void* fake) {
        static_cast<FakeBroker*>(fake)->connections.clear();
        static_cast<FakeBroker*>(fake)->listener.reset();
      });
    });
  }
  // Says this to whoever comes, and waits; nothing: hangs up.
  std::unique_ptr<Elsewhere> start_stranger(const std::string& says) {
    return std::make_unique<Elsewhere>([this, says](net::Loop& loop) {
      const auto held = std::make_shared<std::vector<net::TransportPtr>>();
      std::shared_ptr<net::ByteListener> listener = *net::ByteListener::open(
          loop, {"127.0.0.1", 0}, [says, held](net::TransportPtr transport, const net::AddressKey&) {
            if (says.empty()) return;
            (void)transport->write(std::as_bytes(std::span(says)));
            held->push_back(std::move(transport));
          });
      endpoint_ = listener->endpoint();
      return listener;
    });
  }
  security::Token token(security::Role role = security::Role::Submitter) const {
    return security::make_token(role, broker_->identity->id());
  }
  // By name; the last of each.
  std::map<std::string, Check> look(const std::optional<security::Token>& token) {
    std::map<std::string, Check> checks;
    net::Loop loop;
    (void)look_at_way(loop,
                      {.broker = endpoint_,
                       .token = token,
                       .identity = identity_.get(),
                       .unix_ms = unix_ms_now,
                       .software = "1.0"},
                      [&](const Check& check) { checks[check.name] = check; });
    return checks;
  }

  std::unique_ptr<security::Identity> identity_ = *security::Identity::generate();
  Endpoint endpoint_;
};

TEST_F(DoctorOverSockets, ABrokerThatIsWellIsFoundWell) {
  const auto broker =
      start_broker({.software = "1.0", .name = "b", .unix_ms = unix_ms_now(), .address = "127.0.0.1:4711"});
  const auto checks = look(token());
  for (const char* name : {"name", "dial", "tls", "key", "token", "version", "clock", "reach", "relay"}) {
    ASSERT_TRUE(checks.contains(name)) << name;
    EXPECT_EQ(checks.at(name).state, CheckState::Ok) << check_line(checks.at(name));
  }
  for (const char* name : {"uplink", "downlink"}) {
    ASSERT_TRUE(checks.contains(name)) << name;
    EXPECT_NE(checks.at(name).seen.find("Mbit/s"), std::string::npos) << check_line(checks.at(name));
  }
}

TEST_F(DoctorOverSockets, AWrongClockIsNamed) {
  const auto broker = start_broker({.software = "1.0", .unix_ms = unix_ms_now() - 3'600'000});
  expect(look(token()).at("clock"), CheckState::Warning, "ahead of the broker's");
}

TEST_F(DoctorOverSockets, AnotherKeyIsSeenBeforeTheTokenIsShown) {
  const auto broker = start_broker({.software = "1.0"});
  security::Token other = token();
  other.broker = key(1);
  const auto checks = look(other);
  expect(checks.at("key"), CheckState::Stops, "and not 010101010101");
  EXPECT_FALSE(checks.contains("token"));
}

TEST_F(DoctorOverSockets, WithoutATokenTheKeyIsShown) {
  const auto broker = start_broker({.software = "1.0"});
  const auto checks = look(std::nullopt);
  expect(checks.at("key"), CheckState::Warning, to_string(broker_->identity->id()));
  expect(checks.at("token"), CheckState::Stops, "none was given", "weft login");
}

TEST_F(DoctorOverSockets, ACaptivePortalIsNamedWithWhereItSends) {
  const auto portal = start_stranger(
      "HTTP/1.1 302 Found\r\nServer: portal\r\nlocation:   http://login.example/\r\n\r\n<html>");
  const auto checks = look(token());
  expect(checks.at("tls"), CheckState::Stops, "HTTP/1.1 302 Found, which sends to http://login.example/");
  EXPECT_FALSE(checks.contains("key"));
}

TEST_F(DoctorOverSockets, AnotherProgramsPortIsQuotedAndBoundedByOneLine) {
  const auto ssh = start_stranger("SSH-2.0-OpenSSH_9.2\r\n" + std::string(100'000, 'x'));
  expect(look(token()).at("tls"), CheckState::Stops, "\"SSH-2.0-OpenSSH_9.2\"");
}

TEST_F(DoctorOverSockets, WhoHangsUpIsSaidToHangUp) {
  const auto nobody = start_stranger("");
  expect(look(token()).at("tls"), CheckState::Stops, "hangs up");
}

TEST_F(DoctorOverSockets, AProxyThatReadsTlsIsNamedByItsCertificate) {
  const auto& files = web::test::files_of_certificate();
  const auto server = web::Server::start({.certificate_file = files.certificate, .key_file = files.key},
                                         web::make_api(std::make_shared<web::test::FakeService>(), {}));
  ASSERT_TRUE(server.has_value()) << server.error().message;
  endpoint_ = (*server)->endpoint();
  expect(look(token()).at("tls"), CheckState::Stops, "the certificate of localhost, issued by localhost");
  (*server)->stop(std::chrono::seconds(1));
}

TEST_F(DoctorOverSockets, AClosedPortIsRefused) {
  const auto broker = start_broker({});
  endpoint_.port = 1;
  const auto checks = look(token());
  expect(checks.at("dial"), CheckState::Stops, "Connection refused", "whether the broker runs");
  EXPECT_FALSE(checks.contains("tls"));
}

TEST_F(DoctorOverSockets, ANameThatNobodyHasIsNotFound) {
  endpoint_ = {"no-such-name.invalid", 7700};
  const auto checks = look(token());
  EXPECT_EQ(checks.at("name").state, CheckState::Stops) << check_line(checks.at("name"));
  EXPECT_FALSE(checks.contains("dial"));
}

}  // namespace
}  // namespace weft::cli
