// Peers measure the link between them, over sockets: what is measured is what the emulator lets pass, and
// nobody sends or receives what the broker did not ask for.
#include "peer/service/prober.h"

#include <gtest/gtest.h>

#include "peer/service/bulk.h"
#include "peer/service/link_service.h"
#include "security/identity.h"

namespace weft::peer::test {
namespace {

constexpr Duration kPatience = std::chrono::seconds(60);  // only a hang reaches it
constexpr double kClose = 0.15;

net::ShapeDirection direction(double megabits, int milliseconds) {
  return {.bytes_per_second = megabits * 125e3, .delay = std::chrono::milliseconds(milliseconds)};
}

class ProberTest : public ::testing::Test {
 protected:
  struct Peer {
    Peer(net::Loop& loop, std::optional<net::Shape> shape = {}, std::optional<net::Endpoint> relay = {},
         bool listens = true) {
      LinkService::Options options;
      options.identity = identity.get();
      if (relay) options.relay = *relay;
      if (shape) options.shape = [shape](const std::string&) { return shape; };
      if (listens) options.listen = net::Endpoint{"127.0.0.1", 0};
      auto started = LinkService::start(
          loop, std::move(options),
          {.on_all_up = [](uint64_t) {},
           .on_down = [](uint64_t, const plan::Seat&, const Error&) {},
           .on_tensor = [](uint64_t, const plan::Seat&, const proto::TensorHeader&, const dag::Tensor&) {},
           .on_probed = [this](const proto::ProbeReport& report) { reports.push_back(report); }});
      service = std::move(*started);
    }
    std::string address() const { return net::to_string(*service->endpoint()); }
    std::unique_ptr<security::Identity> identity = *security::Identity::generate();
    std::unique_ptr<LinkService> service;
    std::vector<proto::ProbeReport> reports;
  };

  static proto::ProbeLink asked(const Peer& other, bool dials) {
    proto::ProbeLink link{.round = 7,
                          .peer = other.identity->id(),
                          .dials = dials,
                          .bytes_max = 16 << 20,
                          .time_max = std::chrono::milliseconds(1200),
                          .deadline = std::chrono::seconds(30)};
    if (other.service->endpoint()) link.addresses = {other.address()};
    return link;
  }
  bool run_until(const std::function<bool()>& done) { return loop_.run_until(kPatience, done); }
  // `a` dials.
  void measure(Peer& a, Peer& b) {
    b.service->probe(asked(a, false));
    a.service->probe(asked(b, true));
    ASSERT_TRUE(run_until([&] { return !a.reports.empty() && !b.reports.empty(); }));
    for (const Peer* peer : {&a, &b}) {
      ASSERT_FALSE(peer->reports[0].failure) << peer->reports[0].failure->message;
      EXPECT_EQ(peer->reports[0].round, 7u);
    }
    EXPECT_EQ(a.reports[0].peer, b.identity->id());
    EXPECT_EQ(b.reports[0].peer, a.identity->id());
  }
  static void expect_rate(const proto::ProbeReport& report, double megabits) {
    EXPECT_NEAR(report.bytes_per_second * 8e-6, megabits, kClose * megabits);
  }

  net::Loop loop_;
};

TEST_F(ProberTest, MeasuresASlowLinkBothWays) {
  Peer a(loop_, net::Shape{.send = direction(8, 20), .receive = direction(8, 20)}), b(loop_);
  measure(a, b);
  expect_rate(a.reports[0], 8);
  expect_rate(b.reports[0], 8);
  for (const Peer* peer : {&a, &b}) {
    EXPECT_GE(seconds(peer->reports[0].round_trip), 0.040);
    EXPECT_LT(seconds(peer->reports[0].round_trip), 0.060);
    EXPECT_FALSE(peer->reports[0].relayed);
  }
}

TEST_F(ProberTest, MeasuresAFastLinkBothWays) {
  Peer a(loop_, net::Shape{.send = direction(100, 5), .receive = direction(100, 5)}), b(loop_);
  measure(a, b);
  expect_rate(a.reports[0], 100);
  expect_rate(b.reports[0], 100);
}

TEST_F(ProberTest, MeasuresEachWayByItself) {
  Peer a(loop_, net::Shape{.send = direction(10, 15), .receive = direction(60, 15)}), b(loop_);
  measure(a, b);
  expect_rate(a.reports[0], 60);
  expect_rate(b.reports[0], 10);
}

// What several connections would share one connection alone gets.
TEST_F(ProberTest, MeasuresTheLineOfAPeer) {
  Peer a(loop_, net::Shape{.uplink = net::AccessLine::make(1e6), .downlink = net::AccessLine::make(5e6)}),
      b(loop_);
  measure(a, b);
  expect_rate(a.reports[0], 40);
  expect_rate(b.reports[0], 8);
}

// Nothing slows it down: it is over soon, and within the bytes that were allowed.
TEST_F(ProberTest, IsSoonDoneWhereLinksAreFast) {
  Peer a(loop_), b(loop_);
  const auto began = std::chrono::steady_clock::now();
  measure(a, b);
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(3));
  EXPECT_GT(a.reports[0].bytes_per_second, 1e7);
}

TEST_F(ProberTest, GoesByTheRelayWhereNobodyListens) {
  net::ListenOptions listen;
  const auto identity = *security::Identity::generate();
  listen.identity = identity.get();
  std::vector<net::RelayTicket> tickets;
  listen.relay_ticket_is_granted = [&](const net::RelayTicket& ticket) {
    tickets.push_back(ticket);
    return true;
  };
  auto relay = net::Listener::open(loop_, {"127.0.0.1", 0}, listen, [](const net::ConnectionPtr&) {});
  ASSERT_TRUE(relay.has_value());
  Peer a(loop_, {}, (*relay)->endpoint(), /*listens=*/false);
  Peer b(loop_, {}, (*relay)->endpoint(), /*listens=*/false);
  proto::ProbeLink to_a = asked(a, false), to_b = asked(b, true);
  to_a.relay_ticket = to_b.relay_ticket = {1, 2, 3};
  b.service->probe(to_a);
  a.service->probe(to_b);
  ASSERT_TRUE(run_until([&] { return !tickets.empty(); }));
  b.service->invite(to_a.relay_ticket);
  ASSERT_TRUE(run_until([&] { return !a.reports.empty() && !b.reports.empty(); }));
  for (const Peer* peer : {&a, &b}) {
    EXPECT_FALSE(peer->reports[0].failure.has_value());
    EXPECT_TRUE(peer->reports[0].relayed);
    EXPECT_GT(peer->reports[0].bytes_per_second, 1e6);
  }
}

TEST_F(ProberTest, TheOneThatNobodyComesToSaysSoInTime) {
  Peer a(loop_), b(loop_);
  proto::ProbeLink link = asked(a, false);
  link.deadline = std::chrono::milliseconds(200);
  b.service->probe(link);
  ASSERT_TRUE(run_until([&] { return !b.reports.empty(); }));
  ASSERT_TRUE(b.reports[0].failure.has_value());
  EXPECT_EQ(b.reports[0].failure->code, ErrorCode::Timeout);
}

TEST_F(ProberTest, TheOneThatFindsNobodySaysSo) {
  Peer a(loop_), b(loop_);
  proto::ProbeLink link = asked(b, true);
  link.addresses = {"127.0.0.1:1", "no address"};  // and no relay
  a.service->probe(link);
  ASSERT_TRUE(run_until([&] { return !a.reports.empty(); }));
  ASSERT_TRUE(a.reports[0].failure.has_value());
  EXPECT_EQ(a.reports[0].failure->code, ErrorCode::Unavailable);
}

TEST_F(ProberTest, AStageEndsIt) {
  Peer a(loop_, net::Shape{.send = direction(1, 20), .receive = direction(1, 20)}), b(loop_);
  b.service->probe(asked(a, false));
  a.service->probe(asked(b, true));
  const auto assignment = std::make_shared<proto::AssignStage>();
  a.service->open(1, assignment);
  ASSERT_TRUE(run_until([&] { return !a.reports.empty(); }));
  ASSERT_TRUE(a.reports[0].failure.has_value());
  EXPECT_EQ(a.reports[0].failure->code, ErrorCode::Cancelled);
}

// Speaks over a connection of its own, as whoever it is.
class Stranger {
 public:
  Stranger(net::Loop& loop, const std::string& address, const PeerId& expected,
           const security::Identity& identity) {
    net::ConnectOptions options;
    options.identity = &identity;
    options.expected = expected;
    attempt_ =
        net::connect(loop, *net::parse_endpoint(address), options, [this](Result<net::ConnectionPtr> result) {
          ASSERT_TRUE(result.has_value()) << result.error().message;
          connection = *result;
          connection->start(
              {.on_frame = [this](const net::InFrame& frame) { received.push_back(frame.kind); },
               .on_closed = [this](const Error&) { closed = true; }});
        });
  }
  void say(const proto::Message& message) { connection->send(message_frame(message)); }

  net::ConnectionPtr connection;
  std::vector<uint8_t> received;
  bool closed = false;

 private:
  std::unique_ptr<net::Attempt> attempt_;
};

TEST_F(ProberTest, AStrangerIsNotSentAnything) {
  Peer a(loop_), b(loop_);
  b.service->probe(asked(a, false));
  const auto identity = *security::Identity::generate();
  Stranger stranger(loop_, b.address(), b.identity->id(), *identity);
  ASSERT_TRUE(run_until([&] { return stranger.connection != nullptr; }));
  stranger.say(proto::ProbeHello{7});
  stranger.say(proto::ProbeSay{proto::ProbeWord::Ask, 1 << 20});
  ASSERT_TRUE(run_until([&] { return stranger.closed; }));
  EXPECT_TRUE(stranger.received.empty());
  // The one that was meant is served as ever.
  a.service->probe(asked(b, true));
  ASSERT_TRUE(run_until([&] { return !a.reports.empty() && !b.reports.empty(); }));
  EXPECT_FALSE(a.reports[0].failure || b.reports[0].failure);
}

TEST_F(ProberTest, NobodyGetsMoreThanTheBrokerAllowed) {
  Peer a(loop_), b(loop_);
  proto::ProbeLink link = asked(a, false);
  link.bytes_max = 1 << 20;
  b.service->probe(link);
  Stranger greedy(loop_, b.address(), b.identity->id(), *a.identity);  // the right key
  ASSERT_TRUE(run_until([&] { return greedy.connection != nullptr; }));
  greedy.say(proto::ProbeHello{7});
  greedy.say(proto::ProbeSay{proto::ProbeWord::Ask, (1 << 20) + 1});
  ASSERT_TRUE(run_until([&] { return greedy.closed; }));
  EXPECT_LE(greedy.received.size(), 1u);  // the answer to its hello
  ASSERT_TRUE(run_until([&] { return !b.reports.empty(); }));
  EXPECT_EQ(b.reports[0].failure.value_or(Error{}).code, ErrorCode::InvalidArgument);
}

TEST_F(ProberTest, NobodyTakesWhatWasNotAskedFor) {
  Peer a(loop_), b(loop_);
  b.service->probe(asked(a, false));
  Stranger flooder(loop_, b.address(), b.identity->id(), *a.identity);
  ASSERT_TRUE(run_until([&] { return flooder.connection != nullptr; }));
  flooder.say(proto::ProbeHello{7});
  flooder.connection->send({.kind = static_cast<uint8_t>(proto::FrameKind::Probe),
                            .head = std::vector<std::byte>(1000),
                            .body = {}});
  ASSERT_TRUE(run_until([&] { return !b.reports.empty() && flooder.closed; }));
  EXPECT_EQ(b.reports[0].failure.value_or(Error{}).code, ErrorCode::InvalidArgument);
}

// ---- the meter by itself

constexpr uint64_t kBytesMax = 16 << 20;

// Bytes come at a rate that doubles every round trip until it is `rate`.
double metered(double rate, Duration round_trip, Duration* took = nullptr) {
  Instant now{};
  ProbeMeter meter({.bytes_max = kBytesMax, .round_trip = round_trip}, now);
  const Instant began = now;
  double possible = 14e3 / seconds(round_trip);
  Instant doubled = now;
  now += round_trip;
  while (!meter.is_done(now)) {
    while (now - doubled >= round_trip) {
      possible = std::min(rate, 2 * possible);
      doubled += round_trip;
    }
    const bool is_last = meter.asked() == kBytesMax;  // all is under way
    const double window = static_cast<double>(meter.asked() - meter.received()) / seconds(round_trip);
    now += Duration(static_cast<int64_t>(4096 / (is_last ? possible : std::min(possible, window)) * 1e9));
    meter.on_bytes(4096, now);
  }
  if (took != nullptr) *took = now - began;
  return meter.bytes_per_second();
}

TEST(ProbeMeter, LeavesASlowBeginningOut) {
  for (const double rate : {1e5, 1e6, 12.5e6, 40e6})
    for (const int milliseconds : {1, 20, 50})
      EXPECT_NEAR(metered(rate, std::chrono::milliseconds(milliseconds)), rate, 0.1 * rate)
          << rate << " bytes/s, " << milliseconds << " ms";
}

TEST(ProbeMeter, TakesNoMoreTimeAndBytesThanItMay) {
  Instant now{};
  ProbeMeter meter({.bytes_max = 1 << 20}, now);
  uint64_t asked = 0;
  while (!meter.is_done(now)) {
    asked = std::max(asked, meter.asked());
    now += std::chrono::microseconds(1);
    meter.on_bytes(std::min<uint64_t>(4096, meter.asked() - meter.received()), now);
  }
  EXPECT_EQ(asked, uint64_t{1} << 20);
  EXPECT_EQ(meter.received(), uint64_t{1} << 20);
  ProbeMeter idle({}, now);
  EXPECT_FALSE(idle.is_done(now));
  EXPECT_TRUE(idle.is_done(idle.deadline()));
  EXPECT_EQ(idle.bytes_per_second(), 0);
}

}  // namespace
}  // namespace weft::peer::test
