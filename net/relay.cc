#include "net/relay.h"

#include <algorithm>
#include <optional>

namespace weft::net {

namespace {
constexpr size_t kTurn = 1 << 20;  // bytes forwarded before others have their turn
}  // namespace

std::array<std::byte, kRelayPreambleSize> relay_preamble(const RelayPreamble& preamble) {
  std::array<std::byte, kRelayPreambleSize> bytes{};
  const auto to_byte = [](auto value) { return static_cast<std::byte>(value); };
  std::transform(kRelayMagic.begin(), kRelayMagic.end(), bytes.begin(), to_byte);
  bytes[kRelayMagic.size()] = to_byte(preamble.initiates ? 1 : 0);
  std::transform(preamble.ticket.bytes.begin(), preamble.ticket.bytes.end(),
                 bytes.begin() + kRelayMagic.size() + 1, to_byte);
  return bytes;
}

std::optional<RelayPreamble> parse_relay_preamble(std::span<const std::byte> bytes) {
  if (bytes.size() != kRelayPreambleSize) return std::nullopt;
  RelayPreamble preamble{.initiates = bytes[kRelayMagic.size()] == std::byte{1}};
  for (size_t i = 0; i < preamble.ticket.bytes.size(); ++i)
    preamble.ticket.bytes[i] = std::to_integer<uint8_t>(bytes[kRelayMagic.size() + 1 + i]);
  const auto expected = relay_preamble(preamble);
  return std::equal(bytes.begin(), bytes.end(), expected.begin()) ? std::optional(preamble) : std::nullopt;
}

// One side, until the other is there.
class Relay::Waiting final : public std::enable_shared_from_this<Waiting>, Transport::Events {
 public:
  Waiting(Relay& relay, const RelayPreamble& preamble, TransportPtr transport, std::shared_ptr<void> token)
      : relay_(relay),
        preamble_(preamble),
        transport_(std::move(transport)),
        token_(std::move(token)),
        alarm_(relay.context_) {}
  ~Waiting() {
    if (transport_) transport_->close();
  }

  void begin() {
    transport_->set_events(this);
    transport_->arm_read();
    alarm_.set_after(relay_.limits_.relay_wait, [this] {
      ++relay_.stats_.timed_out;
      relay_.remove_waiting(preamble_.ticket);
    });
  }
  void end() {
    alarm_.cancel();
    transport_->close();
    token_.reset();
  }
  std::pair<TransportPtr, std::shared_ptr<void>> take() {
    transport_->set_events(nullptr);
    alarm_.cancel();
    return {std::move(transport_), std::move(token_)};
  }
  bool initiates() const { return preamble_.initiates; }

 private:
  // It has hung up, or speaks before it may.
  void on_readable() override {
    std::byte byte;
    if (transport_->read({&byte, 1}).state == Io::State::Blocked) return transport_->arm_read();
    relay_.remove_waiting(preamble_.ticket);
  }
  void on_writable() override {}

  Relay& relay_;
  const RelayPreamble preamble_;
  TransportPtr transport_;
  std::shared_ptr<void> token_;
  Alarm alarm_;
};

// Two sides that were joined. Bytes are read only while the buffer towards the other side has room: a slow
// reader slows the sender down, and nothing grows.
class RelayPair final : public std::enable_shared_from_this<RelayPair> {
 public:
  using Half = std::pair<TransportPtr, std::shared_ptr<void>>;
  RelayPair(Relay& relay, const RelayTicket& ticket, Half first, Half second)
      : relay_(&relay),
        ticket_(ticket),
        context_(relay.context_),
        sides_{Side(*this, std::move(first)), Side(*this, std::move(second))},
        alarm_(relay.context_) {}
  ~RelayPair() {
    for (Side& side : sides_) side.transport->close();
  }

  void begin() {
    for (Side& side : sides_) {
      side.transport->set_events(&side);
      side.to_send.append({&kRelayJoined, 1});
    }
    pump();
  }

  void end() {
    Relay* relay = relay_;
    relay_ = nullptr;
    alarm_.cancel();
    for (Side& side : sides_) {
      side.transport->close();
      side.token.reset();
    }
    if (relay != nullptr) relay->remove_pair(ticket_);
  }

 private:
  struct Side final : Transport::Events {
    Side(RelayPair& of, Half half)
        : pair(&of), transport(std::move(half.first)), token(std::move(half.second)) {}
    void on_readable() override { pair->pump(); }
    void on_writable() override { pair->pump(); }
    RelayPair* pair;
    TransportPtr transport;
    std::shared_ptr<void> token;
    ByteQueue to_send;       // towards this side
    bool has_ended = false;  // it sends no more
    bool is_shut = false;    // it was told that nothing more comes
  };

  void pump() {
    if (relay_ == nullptr) return;
    const auto self = shared_from_this();
    size_t moved = 0;
    if (!forward(sides_[0], sides_[1], moved) || !forward(sides_[1], sides_[0], moved)) return end();
    if (sides_[0].is_shut && sides_[1].is_shut) return end();
    if ((sides_[0].has_ended || sides_[1].has_ended) && !is_ending_) {
      is_ending_ = true;  // a side that never answers the other's end does not keep the pair
      alarm_.set_after(relay_->limits_.relay_wait, [this] { end(); });
    }
  }

  // False when one of them is gone.
  bool forward(Side& from, Side& to, size_t& moved) {
    const auto size_max = static_cast<size_t>(std::max<int64_t>(relay_->limits_.relay_buffer.value, 4096));
    size_t budget = kTurn;
    bool can_read = !from.has_ended, can_write = true;
    while (can_read || (can_write && !to.to_send.empty())) {
      if (budget == 0) {
        context_->post([weak = weak_from_this()] {
          if (const auto pair = weak.lock()) pair->pump();
        });
        return true;
      }
      if (can_read && to.to_send.size() < size_max) {
        auto room = to.to_send.prepare();
        room = room.first(std::min(room.size(), size_max - to.to_send.size()));
        const Io io = from.transport->read(room);
        if (io.state == Io::State::Failed) return false;
        if (io.state == Io::State::End) from.has_ended = true;
        if (io.state == Io::State::Blocked) from.transport->arm_read();
        if (io.state != Io::State::Ready) can_read = false;
        to.to_send.commit(io.size);
        budget -= std::min(budget, io.size);
        moved += io.size;
        relay_->stats_.relayed_bytes += io.size;
      } else if (!can_write) {
        break;  // full: on_writable comes back here
      }
      if (can_write && !to.to_send.empty()) {
        const Io io = to.transport->write(to.to_send.front());
        if (io.state == Io::State::Ready)
          to.to_send.consume(io.size);
        else if (io.state != Io::State::Blocked)
          return false;
        else
          can_write = false;
        if (!can_write) to.transport->arm_write();
      }
    }
    if (from.has_ended && to.to_send.empty() && !to.is_shut) {
      to.is_shut = true;
      to.transport->shut_write();
    }
    return true;
  }

  Relay* relay_;  // null once it has ended
  const RelayTicket ticket_;
  const std::shared_ptr<Context> context_;
  std::array<Side, 2> sides_;
  Alarm alarm_;
  bool is_ending_ = false;
};

Relay::Relay(std::shared_ptr<Context> context, const ListenLimits& limits,
             std::function<bool(const RelayTicket&)> is_granted, ListenStats& stats)
    : context_(std::move(context)), limits_(limits), is_granted_(std::move(is_granted)), stats_(stats) {}
Relay::~Relay() {
  while (!pairs_.empty()) pairs_.begin()->second->end();
}

void Relay::arrive(const RelayPreamble& preamble, TransportPtr transport, std::shared_ptr<void> token) {
  // Whoever is refused below is closed without a word: the transport goes.
  const RelayTicket& ticket = preamble.ticket;
  if (const auto found = waiting_.find(ticket);
      found != waiting_.end() && found->second->initiates() != preamble.initiates) {
    const auto first = found->second;
    waiting_.erase(found);
    if (const auto before = pairs_.find(ticket); before != pairs_.end()) before->second->end();
    const auto pair = std::make_shared<RelayPair>(*this, ticket, first->take(),
                                                  RelayPair::Half(std::move(transport), std::move(token)));
    pairs_.emplace(ticket, pair);
    stats_.open_relays = pairs_.size();
    return pair->begin();
  }
  remove_waiting(ticket);
  if (waiting_.size() + pairs_.size() >= limits_.relay_pairs_max) {
    ++stats_.refused_by_limit;
    return transport->close();
  }
  if (!is_granted_ || !is_granted_(ticket)) return transport->close();
  const auto waiting = std::make_shared<Waiting>(*this, preamble, std::move(transport), std::move(token));
  waiting_.emplace(ticket, waiting);
  waiting->begin();
}

// What is removed may be running: it goes when the loop comes round.
void Relay::remove_waiting(const RelayTicket& ticket) {
  const auto found = waiting_.find(ticket);
  if (found == waiting_.end()) return;
  found->second->end();
  context_->post([gone = std::move(found->second)] {});
  waiting_.erase(found);
}

void Relay::remove_pair(const RelayTicket& ticket) {
  const auto found = pairs_.find(ticket);
  if (found == pairs_.end()) return;
  context_->post([gone = std::move(found->second)] {});
  pairs_.erase(found);
  stats_.open_relays = pairs_.size();
}

}  // namespace weft::net
