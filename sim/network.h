// The network between broker, peers and users: connections that keep order, as TCP does, over paths with
// latency, jitter, loss and bandwidth that can be cut in one direction, go silent, or come back. Each node
// has one uplink and one downlink, which its bytes pass in the order in which they come; a large packet comes
// in pieces, between which those of other connections pass, so that connections have equal parts of a line.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/result.h"
#include "net/model/link_model.h"
#include "proto/messages.h"
#include "sim/world.h"

namespace weft::sim {

// A tensor on its way between stages: its bytes are a hash, `made_by` the plan that computed it.
struct TensorPacket {
  proto::TensorHeader header;
  uint64_t value = 0;
  bool spoilt = false;  // not all of it is finite
  double square = 0;    // of its norm, where replicas agree
};
struct Packet {
  std::shared_ptr<const proto::Message> message{};
  std::shared_ptr<const TensorPacket> tensor{};
  int64_t size = 200;   // bytes
  uint64_t number = 0;  // of a tensor on its link
};

class Network;

// Both ends of one connection. Handlers are never called from within a call of the same object.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  struct Handlers {
    std::function<void(const Packet&)> on_packet;
    std::function<void(const Error&)> on_lost;  // once, and nothing after it
    std::function<void()> on_part{};            // of a large packet, which has not come whole yet
  };
  // What arrives before this waits.
  void listen(int end, Handlers handlers);
  void send(int end, Packet packet);
  void close(int end);  // after what was sent has gone; no handler of this end is called any more
  NodeId node(int end) const { return ends_[end].node; }
  bool is_open(int end) const { return ends_[end].open; }
  size_t in_flight(int end) const { return ends_[end].out.size(); }
  bool relayed() const { return relayed_; }

 private:
  friend class Network;
  struct Item {
    Instant arrives;
    Packet packet;
    int64_t size = 0;
    bool part = false;         // of a large packet; the last one brings it
    bool last = false;         // the end of the stream
    bool in_downlink = false;  // it has come that far
    ErrorCode reason = ErrorCode::Unavailable;
  };
  struct End {
    NodeId node = 0;
    bool open = true;
    Handlers handlers;
    std::deque<Item> out;  // from this end, not yet arrived
    // A large packet and what comes after it: they enter the line as it gets to them.
    std::deque<Packet> waiting;
    int64_t entered = 0;  // of the first
    std::optional<ErrorCode> closes{};
    std::optional<net::LinkModel> path{};
    bool scheduled = false, stalled = false;
    uint64_t stall = 0;
  };
  void enter(int end, Packet packet, int64_t size, bool part);
  void enter_waiting(int end);
  void clear_out(int end);
  void schedule(int end);
  void deliver(int end);
  void push_last(int end, ErrorCode reason, Duration delay);
  void lose(int end, const Error& error);

  Network* network_ = nullptr;
  bool relayed_ = false, dead_ = false;
  End ends_[2];
};
using ConnectionPtr = std::shared_ptr<Connection>;

struct Line {  // one end of a connection
  ConnectionPtr connection;
  int end = 0;
  explicit operator bool() const { return connection != nullptr; }
  void listen(Connection::Handlers handlers) const { connection->listen(end, std::move(handlers)); }
  void send(Packet packet) const { connection->send(end, std::move(packet)); }
  void close() const { connection->close(end); }
  bool is_open() const { return connection->is_open(end); }
  NodeId other() const { return connection->node(1 - end); }
};

class Network {
 public:
  Network(World& world, uint64_t seed, Duration latency_max, uint64_t bytes_per_second_min);

  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  World& world() { return world_; }
  // A node takes connections while it has an acceptor. It calls the function once it has taken the
  // connection; frozen ones later.
  using Accepted = std::function<void()>;
  void set_acceptor(NodeId node, std::function<void(Line, Accepted)> acceptor);
  void clear_acceptor(NodeId node);  // connecting is refused
  // Its machine is off: connecting finds nobody.
  void set_silent(NodeId node, bool silent);

  using Dialled = std::function<void(Result<Line>)>;
  void dial(NodeId from, NodeId to, Duration deadline, Dialled dialled);
  // Two nodes that came to the broker with one ticket.
  std::pair<Line, Line> join_by_relay(NodeId from, NodeId to);

  // A process ends: its kernel tells the others, unless the machine is gone too.
  void drop_node(NodeId node, bool silent);
  // Faults
  void cut(NodeId from, NodeId to, bool cut);    // one direction of a pair
  void isolate(NodeId node, bool out, bool in);  // all of a node's
  void break_one(NodeId node, Draw& draw);       // one connection of the node; one side hears of it later
  void blackhole_one(NodeId node, Draw& draw);   // nothing arrives any more, and nobody is told
  void heal();                                   // all paths; silent connections end

  bool blocked(NodeId from, NodeId to) const;
  Duration latency(NodeId a, NodeId b) const;
  int64_t bytes_per_second(NodeId a, NodeId b) const;
  net::ShapeDirection path(NodeId from, NodeId to) const;
  // What a flow gets that has both ends' lines for itself.
  double flow_rate(NodeId from, NodeId to) const;
  // For request and answer on a connection of its own: `bytes` pass a node's line, piece by piece, so that
  // what else it sends or receives comes between; no faster than `speed` bytes a second, unless that is 0.
  enum class Direction : uint8_t { Out, In };
  void transfer(NodeId node, Direction direction, int64_t bytes, std::function<void()> done,
                int64_t speed = 0);
  // From now on, for what comes after what has entered it.
  void set_line(NodeId node, Direction direction, double bytes_per_second);

  size_t in_flight_max() const { return in_flight_max_; }

 private:
  friend class Connection;
  ConnectionPtr make(NodeId from, NodeId to, bool relayed);
  net::ShapeDirection relay_path(NodeId from, NodeId to) const;
  net::RateClock& line(NodeId node, Direction direction);
  double line_rate(NodeId node, Direction direction) const;
  bool blocked(const Connection& connection, int from_end) const;
  void wake_stalled();
  std::vector<ConnectionPtr> connections_of(NodeId node);

  World& world_;
  uint64_t seed_;
  Draw draw_;
  Duration latency_max_;
  uint64_t bytes_per_second_min_;
  std::map<NodeId, std::function<void(Line, Accepted)>> acceptors_;
  std::set<NodeId> silent_, out_blocked_, in_blocked_;
  std::set<std::pair<NodeId, NodeId>> cut_;
  bool any_blocked_ = false;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::map<std::pair<NodeId, Direction>, net::RateClock> lines_;
  std::map<std::pair<NodeId, Direction>, double> line_rates_;  // of those that were set
  size_t in_flight_max_ = 0;
};

}  // namespace weft::sim
