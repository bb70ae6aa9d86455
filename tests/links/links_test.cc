// Two stages over real sockets of 127.0.0.1, with wires between them that are cut: each tensor comes exactly
// once with its bytes, and over one connection in order.
#include "peer/service/links.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "base/rng.h"
#include "dag/op_table.h"
#include "net/listener.h"
#include "net/loop.h"
#include "peer/service/bulk.h"
#include "security/identity.h"
#include "tests/links/wire.h"

namespace weft::peer::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kPatience = seconds(120);  // only a hang reaches it
const proto::Secret kTicket = {7};

dag::Tensor made_tensor(uint32_t stage, uint64_t number) {
  Rng rng(stage, number);
  const uint64_t size = rng.below(10) == 0 ? rng.below(100'000) : rng.below(2'000);
  const dag::TensorSpec spec{dag::DType::F32, {static_cast<int64_t>(size)}};
  std::vector<std::byte> bytes(static_cast<size_t>(spec.bytes().value));
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t draw = rng.next_u64();
    std::memcpy(bytes.data() + i, &draw, 8);
  }
  return {spec, bytes};
}

// The peer of one stage, with the part of PeerService that hands its links what comes in.
class Node {
 public:
  Node(net::Loop& loop, uint32_t stage) : loop_(loop), stage_(stage) {
    identity = std::move(*security::Identity::generate());
    net::ListenOptions options;
    options.identity = identity.get();
    listener_ = std::move(*net::Listener::open(
        loop, {"127.0.0.1", 0}, options, [this](net::ConnectionPtr connection) { on_accepted(connection); }));
  }
  net::Endpoint endpoint() const { return listener_->endpoint(); }
  void begin(const proto::LinkRoute& route, LinkOptions options) {
    options.loop = &loop_;
    options.identity = identity.get();
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {stage_};
    assignment->links = {route};
    assignment->programs = programs;
    links = std::make_unique<Links>(
        options, assignment,
        Links::Handlers{
            .on_all_up = [this] { ++up_count; },
            .on_down = [this](const plan::Seat&, const Error& error) { downs.push_back(error); },
            .on_tensor = [this](const plan::Seat& from, const proto::TensorHeader& header,
                                const dag::Tensor& tensor) { on_tensor(from.stage, header, tensor); }});
    links->start();
    tick();
  }
  void restart() {
    links.reset();
    timer_.reset();
    sent = received = 0;
    up_count = 0;
    came_.clear();
  }
  void send_one() {
    ++sent;
    const dag::Tensor tensor = made_tensor(stage_, sent);
    links->send({1 - stage_}, {.run = 1, .plan_version = 1, .step = sent, .spec = tensor.spec()}, tensor);
  }

  std::unique_ptr<security::Identity> identity;
  std::unique_ptr<Links> links;
  std::vector<proto::StageProgram> programs;
  uint64_t sent = 0, received = 0;
  bool all_equal = true;  // each once, and as it was sent
  bool is_in_order = true;
  int up_count = 0;
  std::vector<Error> downs;
  std::function<void()> on_received;

 private:
  struct Arrival {
    net::ConnectionPtr connection;
    net::Connection::Handlers handlers;
  };
  void on_accepted(const net::ConnectionPtr& connection) {
    const auto arrival = std::make_shared<Arrival>();
    arrival->connection = connection;
    arrivals_.push_back(arrival);
    arrival->handlers.on_frame = [this, weak = std::weak_ptr(arrival)](const net::InFrame& frame) {
      const auto here = weak.lock();
      const auto message = proto::decode(frame.payload.span());
      const auto* hello = message ? std::get_if<proto::LinkHello>(&*message) : nullptr;
      if (!here || hello == nullptr || !links) return;
      auto taken = links->offer(here->connection, *hello);
      if (!taken) return;
      here->handlers = std::move(*taken);
      here->connection.reset();
      std::erase(arrivals_, here);
    };
    arrival->handlers.on_closed = [this, weak = std::weak_ptr(arrival)](const Error&) {
      const auto here = weak.lock();
      if (!here) return;
      here->connection.reset();
      std::erase(arrivals_, here);
    };
    connection->start({.on_frame =
                           [arrival](net::InFrame frame) {
                             const auto on_frame = arrival->handlers.on_frame;
                             on_frame(std::move(frame));
                           },
                       .on_closed =
                           [arrival](const Error& error) {
                             const auto on_closed = arrival->handlers.on_closed;
                             on_closed(error);
                           },
                       .on_drained =
                           [arrival] {
                             const auto on_drained = arrival->handlers.on_drained;
                             if (on_drained) on_drained();
                           },
                       .on_head = [arrival](uint8_t kind, size_t size,
                                            std::span<const std::byte> head) -> Result<net::PayloadPlace> {
                         const auto on_head = arrival->handlers.on_head;
                         return on_head ? on_head(kind, size, head) : net::PayloadPlace{};
                       }});
  }
  void on_tensor(uint32_t from, const proto::TensorHeader& header, const dag::Tensor& tensor) {
    ++received;
    is_in_order = is_in_order && header.step == received;
    const dag::Tensor expected = made_tensor(from, header.step);
    all_equal = all_equal && came_.insert(header.step).second && header.spec == expected.spec() &&
                std::ranges::equal(tensor.bytes(), expected.bytes());
    if (on_received) on_received();
  }
  void tick() {
    links->on_tick();
    timer_ = loop_.after(milliseconds(5), [this] { tick(); });
  }

  net::Loop& loop_;
  const uint32_t stage_;
  std::unique_ptr<net::Listener> listener_;
  std::vector<std::shared_ptr<Arrival>> arrivals_;
  std::set<uint64_t> came_;
  std::unique_ptr<net::Loop::Timer> timer_;
};

// Stage 0 dials stage 1 through wire 0; wire 1 and wire 2 are their ways to the relay.
class LinksTest : public ::testing::Test {
 protected:
  LinksTest() {
    relay_identity_ = std::move(*security::Identity::generate());
    open_relay({"127.0.0.1", 0});
    direct = std::make_unique<Wire>(nodes[1].endpoint());
    for (auto& wire : to_relay) wire = std::make_unique<Wire>(relay_->endpoint());
    options.retry_delay_max = milliseconds(20);
    options.ack_interval = milliseconds(20);
    options.heal_deadline = kPatience;
    options.far = kPatience;  // one connection, however slow this machine is
  }
  ~LinksTest() override { relay_.reset(); }
  void open_relay(const net::Endpoint& endpoint) {
    net::ListenOptions listen;
    listen.identity = relay_identity_.get();
    listen.relay_ticket_is_granted = [this](const net::RelayTicket& ticket) {
      if (ticket.bytes != kTicket) return false;
      ++waited_at_relay;
      // As the broker does: the other side is called, by a message that takes its time.
      if (invites) loop.post([this] { nodes[1].links->on_invitation(kTicket); });
      return true;
    };
    auto opened = net::Listener::open(loop, endpoint, listen, [](const net::ConnectionPtr&) {});
    ASSERT_TRUE(opened) << opened.error().message;
    relay_ = std::move(*opened);
  }
  void begin(bool relayed) {
    const std::vector<std::string> addresses =
        relayed ? std::vector<std::string>{} : std::vector{net::to_string(direct->endpoint())};
    for (uint32_t stage : {1u, 0u}) {
      options.relay = to_relay[stage]->endpoint();
      LinkOptions other = other_options.value_or(options);
      other.relay = options.relay;
      nodes[stage].begin({.seat = {1 - stage},
                          .peer = nodes[1 - stage].identity->id(),
                          .dials = stage == 0,
                          .addresses = addresses,
                          .relay_ticket = kTicket},
                         stage == 1 && other_options ? other : options);
    }
  }
  bool run_until(const std::function<bool()>& done) { return loop.run_until(kPatience, done); }
  void cut_all() {
    direct->cut();
    for (auto& wire : to_relay) wire->cut();
  }
  bool is_down() const { return !nodes[0].downs.empty() || !nodes[1].downs.empty(); }

  // Tensors both ways, with `on_any` after each that came, until each side has `count`.
  void exchange(uint64_t count, const std::function<void(uint64_t)>& on_any) {
    uint64_t came = 0;
    for (Node& node : nodes) node.on_received = [&] { on_any(++came); };
    ASSERT_TRUE(run_until([&] {
      if (is_down()) return true;
      for (uint32_t stage : {0u, 1u})
        while (nodes[stage].sent < count && nodes[stage].sent < nodes[1 - stage].received + 30)
          nodes[stage].send_one();
      return nodes[0].received >= count && nodes[1].received >= count;
    }));
    for (Node& node : nodes) {
      node.on_received = nullptr;  // it counts in this frame
      for (const Error& error : node.downs) ADD_FAILURE() << error.message;
      EXPECT_EQ(node.received, count);
      EXPECT_TRUE(node.all_equal);
      EXPECT_TRUE(node.is_in_order || options.far == Duration::zero());
      EXPECT_EQ(node.up_count, 1);
    }
  }
  void exchange_with_cuts(uint64_t seed, bool relayed, bool swallows) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    if (swallows) options.silence_deadline = milliseconds(150);
    begin(relayed);
    Rng rng(seed, 0);
    uint64_t next = rng.below(40);
    int cuts = 0;
    exchange(250, [&](uint64_t came) {
      if (came < next) return;
      next = came + rng.below(40);
      Wire& wire = !relayed ? *direct : *to_relay[rng.below(2)];
      if (swallows && rng.below(3) == 0)
        wire.swallow();
      else
        wire.cut();
      ++cuts;
    });
    EXPECT_GT(cuts, 10);
  }

  net::Loop loop;
  std::unique_ptr<security::Identity> relay_identity_;
  Node nodes[2] = {{loop, 0}, {loop, 1}};
  std::unique_ptr<Wire> direct, to_relay[2];
  LinkOptions options;
  std::optional<LinkOptions> other_options;  // of stage 1, where they differ
  bool invites = true;
  int waited_at_relay = 0;
  std::unique_ptr<net::Listener> relay_;
};

TEST_F(LinksTest, CarriesTensorsBothWays) {
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  EXPECT_EQ(direct->accepted(), 1);
  EXPECT_EQ(waited_at_relay, 0);
}

TEST_F(LinksTest, CarriesTensorsThroughTheRelay) {
  begin(/*relayed=*/true);
  exchange(200, [](uint64_t) {});
  EXPECT_EQ(waited_at_relay, 1);
}

class CutLinksTest : public LinksTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(Seeds, CutLinksTest, ::testing::Range(1, 6));

TEST_P(CutLinksTest, EachTensorOnceOverAddresses) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/false, /*swallows=*/false);
}
TEST_P(CutLinksTest, EachTensorOnceOverTheRelay) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/true, /*swallows=*/false);
}
TEST_P(CutLinksTest, EachTensorOnceWhenConnectionsFallSilent) {
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/GetParam() % 2 == 0, /*swallows=*/true);
}

TEST_P(CutLinksTest, EachTensorOnceOverSeveralConnections) {
  options.far = Duration::zero();
  exchange_with_cuts(static_cast<uint64_t>(GetParam()), /*relayed=*/false, /*swallows=*/GetParam() % 2 == 0);
}

// As when a machine wakes: one side knows that its connections are worth nothing.
TEST_P(CutLinksTest, EachTensorOnceWhenASideGivesItsConnectionsUp) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  begin(/*relayed=*/GetParam() % 2 == 0);
  Rng rng(static_cast<uint64_t>(GetParam()), 0);
  uint64_t next = rng.below(40);
  int given_up = 0;
  exchange(250, [&](uint64_t came) {
    if (came < next) return;
    next = came + rng.below(40);
    ++given_up;
    loop.post([this, stage = rng.below(2)] {
      nodes[stage].links->lose_connections({ErrorCode::Unavailable, "this machine slept"});
    });
  });
  EXPECT_GT(given_up, 5);
}

// ---- several connections

TEST_F(LinksTest, FarAwaySeveralConnectionsCarryIt) {
  options.far = Duration::zero();
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  ASSERT_TRUE(run_until([&] { return direct->accepted() == 4; }));
  exchange(400, [](uint64_t) {});
}

TEST_F(LinksTest, BothSidesKeepToTheFewerConnections) {
  options.far = Duration::zero();
  other_options = options;
  other_options->streams = 2;
  begin(/*relayed=*/false);
  exchange(200, [](uint64_t) {});
  ASSERT_TRUE(run_until([&] { return direct->accepted() >= 2; }));
  exchange(400, [](uint64_t) {});
  EXPECT_EQ(direct->accepted(), 2);
}

// As with a peer before minor version 5: whole tensors, over one connection.
TEST_F(LinksTest, ASideThatKnowsNoPiecesGetsWholeTensors) {
  options.far = Duration::zero();
  for (const uint32_t without : {0u, 1u}) {
    SCOPED_TRACE(without);
    for (Node& node : nodes) node.restart();
    other_options = options;
    (without == 1 ? *other_options : options).streams = 0;
    const int before = direct->accepted();
    begin(/*relayed=*/false);
    int cuts = 0;
    exchange(100, [&](uint64_t came) {
      if (came % 50 != 0 || cuts == 2) return;
      ++cuts;
      direct->cut();
    });
    EXPECT_TRUE(nodes[0].is_in_order && nodes[1].is_in_order);
    EXPECT_LE(direct->accepted(), before + 1 + 2 * cuts);
    options.streams = 4;
  }
}

// A port that takes one connection and then none: the link is as it was with one.
TEST_F(LinksTest, FurtherConnectionsThatDoNotComeUpAreMissedByNobody) {
  options.far = Duration::zero();
  begin(/*relayed=*/false);
  ASSERT_TRUE(run_until([&] { return direct->accepted() == 1; }));
  direct->unplug();
  exchange(100, [](uint64_t) {});
}

TEST_F(LinksTest, WhatIsSentWhileTheLinkIsDownGoesLater) {
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  cut_all();
  for (int i = 0; i < 10; ++i)
    for (Node& node : nodes) node.send_one();
  exchange(20, [](uint64_t) {});
}

TEST_F(LinksTest, GoesToTheRelayWhenTheAddressAnswersNoMore) {
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->unplug();
  cut_all();
  exchange(200, [](uint64_t) {});
  EXPECT_GE(waited_at_relay, 1);
}

// The broker was killed and started again: both sides come to the relay by themselves, for its invitation may
// not reach a peer that is not back yet.
TEST_F(LinksTest, MeetsAgainAtARelayThatWasAway) {
  begin(/*relayed=*/true);
  exchange(10, [](uint64_t) {});
  const net::Endpoint endpoint = relay_->endpoint();
  relay_.reset();
  invites = false;
  bool later = false;
  const auto timer = loop.after(milliseconds(100), [&] { later = true; });
  ASSERT_TRUE(run_until([&] { return later; }));
  open_relay(endpoint);
  exchange(200, [](uint64_t) {});
}

TEST_F(LinksTest, IsDownOnceWhenItCannotBeHadAgain) {
  options.heal_deadline = milliseconds(200);
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->unplug();
  for (auto& wire : to_relay) wire->unplug();
  cut_all();
  ASSERT_TRUE(run_until([&] { return !nodes[0].downs.empty() && !nodes[1].downs.empty(); }));
  for (Node& node : nodes) {
    EXPECT_EQ(node.downs.size(), 1u);
    EXPECT_EQ(node.downs.front().code, ErrorCode::Timeout);
  }
  EXPECT_NE(nodes[0].downs.front().message.find("relay"), std::string::npos)
      << nodes[0].downs.front().message;
}

TEST_F(LinksTest, IsDownWhenNobodyComesAtAll) {
  options.ready_deadline = milliseconds(200);
  direct->unplug();
  for (auto& wire : to_relay) wire->unplug();
  begin(/*relayed=*/false);
  ASSERT_TRUE(run_until([&] { return !nodes[0].downs.empty() && !nodes[1].downs.empty(); }));
  EXPECT_EQ(nodes[0].up_count + nodes[1].up_count, 0);
}

TEST_F(LinksTest, IsDownWhenTheOtherSideTakesTooLittle) {
  options.kept_bytes_max = 1 << 20;
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  direct->swallow();
  while (nodes[0].downs.empty() && nodes[0].sent < 10'000) nodes[0].send_one();
  ASSERT_EQ(nodes[0].downs.size(), 1u);
  EXPECT_EQ(nodes[0].downs.front().code, ErrorCode::ResourceExhausted);
}

proto::StageProgram program_that_receives(const dag::TensorSpec& spec, uint32_t from) {
  dag::GraphBuilder builder(dag::op_table());
  proto::StageProgram program;
  program.receives = {{.edge = 0, .value = builder.input("edge.0", spec), .stage = from}};
  program.graph = std::make_shared<const dag::Graph>(builder.finish());
  return program;
}

TEST_F(LinksTest, ATensorOfAnotherShapeThanItsEdgeIsRefusedAtItsHead) {
  nodes[1].programs = {program_that_receives(made_tensor(0, 1).spec(), /*from=*/0)};
  ASSERT_NE(made_tensor(0, 1).spec(), made_tensor(0, 2).spec());
  begin(/*relayed=*/false);
  nodes[0].send_one();
  ASSERT_TRUE(run_until([&] { return nodes[1].received == 1 || is_down(); }));
  EXPECT_TRUE(nodes[1].all_equal);
  ASSERT_FALSE(is_down());
  nodes[0].send_one();
  ASSERT_TRUE(run_until([&] { return is_down(); }));
  ASSERT_EQ(nodes[1].downs.size(), 1u);
  EXPECT_EQ(nodes[1].downs.front().code, ErrorCode::InvalidArgument);
  EXPECT_NE(nodes[1].downs.front().message.find("expected"), std::string::npos)
      << nodes[1].downs.front().message;
  EXPECT_EQ(nodes[1].received, 1u);
}

// What is not read waits at the other side, and is not taken for silence.
TEST_F(LinksTest, WaitsWhileItsOwnerIsBehind) {
  options.silence_deadline = milliseconds(100);
  begin(/*relayed=*/false);
  exchange(10, [](uint64_t) {});
  nodes[1].links->pause_reading(true);
  for (int i = 0; i < 20; ++i) nodes[0].send_one();
  bool later = false;
  const auto timer = loop.after(milliseconds(300), [&] { later = true; });
  ASSERT_TRUE(run_until([&] { return later; }));
  EXPECT_EQ(nodes[1].received, 10u);
  EXPECT_FALSE(is_down());
  nodes[1].links->pause_reading(false);
  ASSERT_TRUE(run_until([&] { return nodes[1].received == 30 || is_down(); }));
  EXPECT_TRUE(nodes[1].all_equal);
  EXPECT_FALSE(is_down());
}

// Tensors that are sent again count as use of the link: they cost what they cost.
TEST_F(LinksTest, CountsWhatWasSentOverAllConnections) {
  begin(/*relayed=*/false);
  exchange(100, [&](uint64_t came) {
    if (came == 50) cut_all();
  });
  uint64_t bytes = 0;
  for (uint64_t number = 1; number <= 100; ++number)
    bytes += static_cast<uint64_t>(made_tensor(0, number).spec().bytes().value);
  const auto use = nodes[0].links->take_use();
  ASSERT_EQ(use.size(), 1u);
  EXPECT_GT(use[0].bytes_sent, bytes);
  EXPECT_LT(nodes[0].links->take_use()[0].bytes_sent, 1000u);
}

}  // namespace
}  // namespace weft::peer::test
