// Two stages with a link between them, over wires that can be cut, and a relay.
#pragma once

#include <gtest/gtest.h>
#include <cstring>
#include <set>
#include "base/rng.h"
#include "dag/op_table.h"
#include "net/listener.h"
#include "net/loop.h"
#include "peer/service/bulk.h"
#include "peer/service/links.h"
#include "security/identity.h"
#include "tests/links/wire.h"

namespace weft::peer::test {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr Duration kPatience = seconds(120);  // only a hang reaches it
inline const proto::Secret kTicket = {7};

inline dag::Tensor made_tensor(uint32_t stage, uint64_t number) {
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
  void begin(const proto::LinkRoute& route, LinkOptions options,
             const std::vector<proto::LinkRoute>& others = {}) {
    options.loop = &loop_;
    options.identity = identity.get();
    auto assignment = std::make_shared<proto::AssignStage>();
    assignment->run = 1;
    assignment->plan_version = 1;
    assignment->seat = {stage_};
    assignment->links = {route};
    assignment->links.insert(assignment->links.end(), others.begin(), others.end());
    assignment->programs = programs;
    links = std::make_unique<Links>(
        options, assignment,
        Links::Handlers{
            .on_all_up = [this] { ++up_count; },
            .on_down =
                [this](const plan::Seat& seat, const Error& error) {
                  downs.push_back(error);
                  down_seats.push_back(seat);
                },
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
  std::vector<plan::Seat> down_seats;
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
  void begin(bool relayed, const std::vector<proto::LinkRoute>& others_of_first = {}) {
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
                         stage == 1 && other_options ? other : options,
                         stage == 0 ? others_of_first : std::vector<proto::LinkRoute>{});
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

}  // namespace weft::peer::test
