#include "sim/network.h"

#include <algorithm>

namespace weft::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

// What a sender's kernel waits for an acknowledgement before it gives the connection up.
constexpr Duration kSendTimeout = seconds(30);
constexpr double kLoss = 0.02;
constexpr int64_t kPiece = 64 << 10;  // of a transfer, and of a large packet

void Connection::listen(int end, Handlers handlers) {
  ends_[end].handlers = std::move(handlers);
  if (!ends_[1 - end].out.empty()) schedule(1 - end);
}

void Connection::send(int end, Packet packet) {
  End& from = ends_[end];
  if (!from.open || dead_) return;
  if (from.waiting.empty() && packet.size < kPiece) {
    const int64_t size = packet.size;
    return enter(end, std::move(packet), size, /*part=*/false);
  }
  from.waiting.push_back(std::move(packet));
  if (from.waiting.size() == 1) enter_waiting(end);
}

void Connection::enter(int end, Packet packet, int64_t size, bool part) {
  End& from = ends_[end];
  const Instant sent = network_->line(from.node, Network::Direction::Out)
                           .pass(static_cast<uint64_t>(size), network_->world_.now());
  Instant arrives = from.path->enter(static_cast<size_t>(size), sent);
  if (!from.out.empty()) arrives = std::max(arrives, from.out.back().arrives);
  from.out.push_back({.arrives = arrives, .packet = std::move(packet), .size = size, .part = part});
  network_->in_flight_max_ = std::max(network_->in_flight_max_, from.out.size());
  schedule(end);
}

// A piece, and the next one when the line has passed it.
void Connection::enter_waiting(int end) {
  End& from = ends_[end];
  if (from.waiting.empty() || dead_) return;
  const int64_t left = from.waiting.front().size - from.entered, size = std::min(left, kPiece);
  const bool part = size < left;
  Packet packet;
  if (part) {
    from.entered += size;
  } else {
    packet = std::move(from.waiting.front());
    from.waiting.pop_front();
    from.entered = 0;
  }
  enter(end, std::move(packet), size, part);
  if (from.waiting.empty()) {
    if (const auto closes = std::exchange(from.closes, std::nullopt))
      push_last(end, *closes, network_->latency(from.node, ends_[1 - end].node));
    return;
  }
  network_->world_.at(network_->line(from.node, Network::Direction::Out).free(),
                      [self = shared_from_this(), end] { self->enter_waiting(end); });
}

void Connection::clear_out(int end) {
  ends_[end].out.clear();
  ends_[end].waiting.clear();
  ends_[end].entered = 0;
}

void Connection::push_last(int end, ErrorCode reason, Duration delay) {
  End& from = ends_[end];
  Instant arrives = network_->world_.now() + delay;
  if (!from.out.empty()) arrives = std::max(arrives, from.out.back().arrives);
  from.out.push_back({.arrives = arrives, .packet = {}, .last = true, .reason = reason});
  schedule(end);
}

void Connection::close(int end) {
  End& from = ends_[end];
  if (!from.open) return;
  from.open = false;
  from.handlers = {};
  clear_out(1 - end);
  if (dead_) return;
  if (!from.waiting.empty()) {
    from.closes = ErrorCode::Cancelled;
    return;
  }
  push_last(end, ErrorCode::Cancelled, network_->latency(from.node, ends_[1 - end].node));
}

void Connection::schedule(int end) {
  End& from = ends_[end];
  if (from.scheduled || from.stalled || from.out.empty()) return;
  from.scheduled = true;
  network_->world_.at(from.out.front().arrives, [self = shared_from_this(), end] { self->deliver(end); });
}

void Connection::deliver(int end) {
  End& from = ends_[end];
  End& to = ends_[1 - end];
  from.scheduled = false;
  if (from.out.empty()) return;
  if (from.out.front().arrives > network_->world_.now()) return schedule(end);
  if (network_->blocked(*this, end)) {  // TCP keeps trying
    from.stalled = true;
    const uint64_t stall = ++from.stall;
    network_->world_.after(kSendTimeout, [self = shared_from_this(), end, stall] {
      End& sender = self->ends_[end];
      if (!sender.stalled || sender.stall != stall) return;
      self->clear_out(end);
      sender.stalled = false;
      self->lose(end, {ErrorCode::Timeout, "what was sent is not acknowledged"});
    });
    return;
  }
  while (!from.out.empty() && from.out.front().arrives <= network_->world_.now()) {
    if (!to.open) {
      clear_out(end);
      return;
    }
    if (!to.handlers.on_packet) return;  // not listening yet
    Item& first = from.out.front();
    if (!first.last && !std::exchange(first.in_downlink, true)) {
      first.arrives = network_->line(to.node, Network::Direction::In)
                          .pass(static_cast<uint64_t>(first.size), network_->world_.now());
      continue;
    }
    const Item item = std::move(from.out.front());
    from.out.pop_front();
    if (item.last) {
      lose(1 - end, {item.reason, "the other side closed the connection"});
      return;
    }
    if (item.part) {
      if (const auto handler = to.handlers.on_part) handler();
      continue;
    }
    const auto handler = to.handlers.on_packet;
    handler(item.packet);
  }
  schedule(end);
}

void Connection::lose(int end, const Error& error) {
  End& here = ends_[end];
  if (!here.open) return;
  here.open = false;
  std::erase_if(here.out, [](const Item& item) { return !item.last; });  // the other is still to be told
  here.waiting.clear();
  const auto handler = std::move(here.handlers.on_lost);
  here.handlers = {};
  network_->world_.note(What::Lost, here.node, ends_[1 - end].node);
  if (handler) handler(error);
}

Network::Network(World& world, uint64_t seed, Duration latency_max, uint64_t bytes_per_second_min)
    : world_(world),
      seed_(seed),
      draw_(seed, 0x6e6574),
      latency_max_(latency_max),
      bytes_per_second_min_(bytes_per_second_min) {}

// Handlers may hold the very connection that they belong to.
Network::~Network() {
  for (const auto& weak : connections_)
    if (const auto connection = weak.lock())
      for (auto& end : connection->ends_) {
        end.open = false;
        const auto handlers = std::exchange(end.handlers, {});
      }
}

void Network::set_acceptor(NodeId node, std::function<void(Line, Accepted)> acceptor) {
  acceptors_[node] = std::move(acceptor);
}
void Network::clear_acceptor(NodeId node) { acceptors_.erase(node); }

void Network::set_silent(NodeId node, bool silent) {
  if (silent)
    silent_.insert(node);
  else
    silent_.erase(node);
}

// Symmetric, and the same whenever it is asked for: nothing is stored for a pair.
Duration Network::latency(NodeId a, NodeId b) const {
  const uint64_t draw = mix(seed_ ^ 0x6c6174, (uint64_t{std::min(a, b)} << 32) | std::max(a, b));
  const auto max = static_cast<uint64_t>(latency_max_.count());
  return Duration(static_cast<Duration::rep>(100'000 + draw % max));
}

int64_t Network::bytes_per_second(NodeId a, NodeId b) const {
  const uint64_t draw = mix(seed_ ^ 0x62616e, (uint64_t{a} << 32) | b);
  return static_cast<int64_t>(bytes_per_second_min_ << (draw % 7));
}

net::ShapeDirection Network::path(NodeId from, NodeId to) const {
  const Duration delay = latency(from, to);
  const bool trembles = mix(seed_ ^ 0x6a6974, (uint64_t{from} << 32) | to) % 2 == 0;
  return {.bytes_per_second = static_cast<double>(bytes_per_second(from, to)),
          .delay = delay,
          .jitter = trembles ? delay / 4 : Duration{},
          .loss = kLoss};
}

// Both legs, without the relay's own line.
net::ShapeDirection Network::relay_path(NodeId from, NodeId to) const {
  const net::ShapeDirection up = path(from, 0), down = path(0, to);
  return {.bytes_per_second = std::min(up.bytes_per_second, down.bytes_per_second),
          .delay = up.delay + down.delay,
          .jitter = up.jitter + down.jitter,
          .loss = kLoss};
}

double Network::flow_rate(NodeId from, NodeId to) const {
  return std::min({static_cast<double>(bytes_per_second(from, to)), line_rate(from, Direction::Out),
                   line_rate(to, Direction::In)});
}

double Network::line_rate(NodeId node, Direction direction) const {
  if (const auto set = line_rates_.find({node, direction}); set != line_rates_.end()) return set->second;
  const uint64_t draw = mix(seed_ ^ 0x6c696e, (uint64_t{node} << 32) | static_cast<uint64_t>(direction));
  const uint64_t times = node == 0 ? 9 : 1 + draw % 6;  // the broker's machine is well connected
  return static_cast<double>(bytes_per_second_min_ << times);
}

net::RateClock& Network::line(NodeId node, Direction direction) {
  const auto at = lines_.find({node, direction});
  if (at != lines_.end()) return at->second;
  return lines_.emplace(std::pair(node, direction), net::RateClock(line_rate(node, direction))).first->second;
}

void Network::set_line(NodeId node, Direction direction, double bytes_per_second) {
  line(node, direction).set_rate(bytes_per_second);
  line_rates_[{node, direction}] = bytes_per_second;
}

void Network::transfer(NodeId node, Direction direction, int64_t bytes, std::function<void()> done,
                       int64_t speed) {
  const int64_t piece = std::min(bytes, kPiece);
  Instant passed = line(node, direction).pass(static_cast<uint64_t>(piece), world_.now());
  if (speed != 0) passed = std::max(passed, world_.now() + Duration(piece * 1'000'000'000 / speed));
  if (piece == bytes) return world_.at(passed, std::move(done));
  world_.at(passed, [this, node, direction, rest = bytes - piece, speed, done = std::move(done)]() mutable {
    transfer(node, direction, rest, std::move(done), speed);
  });
}

bool Network::blocked(NodeId from, NodeId to) const {
  if (!any_blocked_) return false;
  return out_blocked_.contains(from) || in_blocked_.contains(to) || cut_.contains({from, to});
}

bool Network::blocked(const Connection& connection, int from_end) const {
  if (!any_blocked_) return false;
  const NodeId from = connection.ends_[from_end].node, to = connection.ends_[1 - from_end].node;
  return connection.relayed_ ? blocked(from, 0) || blocked(0, to) : blocked(from, to);
}

ConnectionPtr Network::make(NodeId from, NodeId to, bool relayed) {
  auto connection = std::make_shared<Connection>();
  connection->network_ = this;
  connection->relayed_ = relayed;
  connection->ends_[0].node = from;
  connection->ends_[1].node = to;
  for (int end = 0; end < 2; ++end) {
    const NodeId a = connection->ends_[end].node, b = connection->ends_[1 - end].node;
    const net::ShapeDirection direction = relayed ? relay_path(a, b) : path(a, b);
    // A lost packet is seen after a round trip, or when a timer says so.
    const Duration repair = std::max(2 * direction.delay, draw_.doubling(milliseconds(1), milliseconds(400)));
    connection->ends_[end].path.emplace(direction, repair, draw_.next(), 0);
  }
  if (connections_.size() > 256 && (connections_.size() & (connections_.size() - 1)) == 0)
    std::erase_if(connections_, [](const auto& weak) { return weak.expired(); });
  connections_.push_back(connection);
  return connection;
}

void Network::dial(NodeId from, NodeId to, Duration deadline, Dialled dialled) {
  // Called once, whatever comes first.
  const auto once = std::make_shared<Dialled>(std::move(dialled));
  const auto answer = [once](Result<Line> result) {
    if (!*once) return;
    const Dialled call = std::exchange(*once, nullptr);
    call(std::move(result));
  };
  const Duration one_way = latency(from, to);
  world_.after(deadline, [answer] { answer(fail(ErrorCode::Timeout, "nobody answers")); });
  world_.after(one_way, [this, from, to, one_way, answer, once] {
    if (blocked(from, to) || blocked(to, from) || silent_.contains(to)) return;  // until the deadline
    const auto acceptor = acceptors_.find(to);
    if (acceptor == acceptors_.end())
      return world_.after(one_way, [answer] { answer(fail(ErrorCode::Unavailable, "connection refused")); });
    const ConnectionPtr connection = make(from, to, false);
    acceptor->second(Line{connection, 1}, [this, connection, one_way, answer, once] {
      world_.after(2 * one_way, [connection, answer, once] {
        if (!*once) return connection->close(0);
        if (!connection->is_open(0)) return answer(fail(ErrorCode::Unavailable, "the connection was closed"));
        answer(Line{connection, 0});
      });
    });
  });
}

std::pair<Line, Line> Network::join_by_relay(NodeId from, NodeId to) {
  const ConnectionPtr connection = make(from, to, true);
  return {Line{connection, 0}, Line{connection, 1}};
}

std::vector<ConnectionPtr> Network::connections_of(NodeId node) {
  std::vector<ConnectionPtr> found;
  for (const auto& weak : connections_)
    if (const auto connection = weak.lock())
      if (!connection->dead_ && (connection->ends_[0].open || connection->ends_[1].open) &&
          (connection->ends_[0].node == node || connection->ends_[1].node == node ||
           (node == 0 && connection->relayed_)))
        found.push_back(connection);
  return found;
}

void Network::drop_node(NodeId node, bool silent) {
  clear_acceptor(node);
  for (const Direction direction : {Direction::Out, Direction::In}) lines_.erase({node, direction});
  for (const ConnectionPtr& connection : connections_of(node)) {
    for (int end = 0; end < 2; ++end) {
      Connection::End& here = connection->ends_[end];
      const bool passes_through = node == 0 && connection->relayed_;
      if (here.node != node && !passes_through) continue;
      if (here.node == node) {
        here.open = false;
        here.handlers = {};
      }
      connection->clear_out(end);
      if (!silent)
        connection->push_last(end, ErrorCode::Unavailable,
                              latency(here.node, connection->ends_[1 - end].node));
    }
    if (silent) connection->dead_ = true;
  }
}

void Network::cut(NodeId from, NodeId to, bool is_cut) {
  if (is_cut)
    cut_.insert({from, to});
  else
    cut_.erase({from, to});
  wake_stalled();
}

void Network::isolate(NodeId node, bool out, bool in) {
  out_blocked_.erase(node);
  in_blocked_.erase(node);
  if (out) out_blocked_.insert(node);
  if (in) in_blocked_.insert(node);
  wake_stalled();
}

void Network::wake_stalled() {
  any_blocked_ = !cut_.empty() || !out_blocked_.empty() || !in_blocked_.empty();
  for (const auto& weak : connections_)
    if (const auto connection = weak.lock())
      for (int end = 0; end < 2; ++end) {
        Connection::End& here = connection->ends_[end];
        if (!here.stalled || blocked(*connection, end)) continue;
        here.stalled = false;
        if (here.out.empty()) continue;
        const Instant again = world_.now() + draw_.doubling(milliseconds(50), seconds(4));  // TCP's next try
        for (auto& item : here.out) item.arrives = std::max(item.arrives, again);
        connection->schedule(end);
      }
}

void Network::break_one(NodeId node, Draw& draw) {
  const auto candidates = connections_of(node);
  if (candidates.empty()) return;
  const ConnectionPtr& connection = candidates[draw.below(candidates.size())];
  const int first = static_cast<int>(draw.below(2));
  const Duration later = draw.one_in(2) ? Duration{} : draw.doubling(milliseconds(100), seconds(30));
  connection->clear_out(0);
  connection->clear_out(1);
  connection->dead_ = true;
  connection->lose(first, {ErrorCode::Unavailable, "connection reset"});
  world_.after(later, [connection, first] {
    connection->lose(1 - first, {ErrorCode::Unavailable, "connection reset"});
  });
}

void Network::blackhole_one(NodeId node, Draw& draw) {
  const auto candidates = connections_of(node);
  if (candidates.empty()) return;
  const ConnectionPtr& connection = candidates[draw.below(candidates.size())];
  connection->clear_out(0);
  connection->clear_out(1);
  connection->dead_ = true;
}

void Network::heal() {
  cut_.clear();
  out_blocked_.clear();
  in_blocked_.clear();
  wake_stalled();
  for (const auto& weak : connections_)
    if (const auto connection = weak.lock(); connection && connection->dead_)
      for (int end = 0; end < 2; ++end)
        world_.after(milliseconds(1), [connection, end] {
          connection->lose(end, {ErrorCode::Timeout, "nothing has come for too long"});
        });
}

}  // namespace weft::sim
