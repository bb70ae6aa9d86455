#include "net/listener.h"

#include <algorithm>
#include <array>
#include <asio/ip/tcp.hpp>
#include <vector>

#include "net/acceptor.h"
#include "net/census.h"
#include "net/connection_core.h"
#include "net/context.h"
#include "net/relay.h"
#include "net/shaped_transport.h"
#include "net/tcp.h"

namespace weft::net {

namespace {

using asio::ip::tcp;

constexpr std::byte kTlsHandshakeRecord{0x16};
// The heads of a record and of the message in it: what TLS takes memory by.
constexpr size_t kTlsHeadSize = 5 + 4;
constexpr size_t kClientHelloMax = 8 << 10;  // ten times ours

class Port;

// A connection that has not shown a key yet.
class Arrival final : public std::enable_shared_from_this<Arrival>, Transport::Events {
 public:
  Arrival(Port& port, TransportPtr transport, const AddressKey& from, std::shared_ptr<void> connection,
          std::shared_ptr<void> handshake);
  ~Arrival() {
    if (transport_) transport_->close();
  }
  void begin();
  void end(uint64_t ListenStats::*counter);
  bool is_silent_since(Instant time) const { return first_size_ == 0 && began_ <= time; }
  bool is_there_since(Instant time) const { return began_ <= time; }

  const AddressKey from;

 private:
  void on_readable() override { read_first_bytes(); }
  void on_writable() override {}
  void read_first_bytes();
  void begin_tls();

  Port& port_;
  TransportPtr transport_;
  std::shared_ptr<void> connection_token_, handshake_token_;
  Alarm deadline_;
  std::array<std::byte, kRelayPreambleSize> first_{};
  size_t first_size_ = 0;
  const Instant began_ = steady_now();
  std::shared_ptr<ConnectionCore> core_;
};

class Port final : public std::enable_shared_from_this<Port> {
 public:
  Port(std::shared_ptr<Context> context, ListenOptions options,
       std::function<void(ConnectionPtr)> on_connection)
      : context(std::move(context)),
        options(std::move(options)),
        on_connection(std::move(on_connection)),
        relay(this->context, this->options.limits, this->options.relay_ticket_is_granted, stats) {}

  Status open(const Endpoint& endpoint);
  void close() {
    is_closed = true;
    if (acceptor_) acceptor_->close();
    const auto last = std::move(arrivals_);
    arrivals_.clear();
  }
  Endpoint bound() const { return acceptor_->bound(); }
  ListenStats current_stats() const {
    ListenStats now = stats;
    now.open_connections = connections_->size();
    now.open_handshakes = handshakes_->size();
    return now;
  }
  void remove(const std::shared_ptr<Arrival>& arrival) {
    context->post([gone = arrival] {});  // it may be running
    std::erase(arrivals_, arrival);
  }
  bool is_busy(const AddressKey& from) const {
    return 2 * handshakes_->size() >= options.limits.handshakes_max ||
           2 * handshakes_->size_at(from) >= options.limits.handshakes_max_per_address;
  }

  const std::shared_ptr<Context> context;
  const ListenOptions options;
  const std::function<void(ConnectionPtr)> on_connection;
  ListenStats stats;
  std::shared_ptr<const TlsSettings> tls;
  bool is_closed = false;

 private:
  void admit(tcp::socket socket, const tcp::endpoint& from);
  bool make_room(const AddressKey& newcomer);

  std::shared_ptr<Acceptor> acceptor_;
  std::shared_ptr<Census> connections_ = std::make_shared<Census>(), handshakes_ = std::make_shared<Census>();
  std::vector<std::shared_ptr<Arrival>> arrivals_;  // the oldest first, at most handshakes_max

 public:
  Relay relay;
};

// ---- Arrival

Arrival::Arrival(Port& port, TransportPtr transport, const AddressKey& from, std::shared_ptr<void> connection,
                 std::shared_ptr<void> handshake)
    : from(from),
      port_(port),
      transport_(std::move(transport)),
      connection_token_(std::move(connection)),
      handshake_token_(std::move(handshake)),
      deadline_(port.context) {}

void Arrival::begin() {
  const ListenLimits& limits = port_.options.limits;
  const Duration hurried = std::min(limits.first_byte_deadline_when_busy, limits.handshake_deadline);
  const auto end_late = [this] { end(&ListenStats::timed_out); };
  if (port_.is_busy(from))
    deadline_.set_after(hurried, [this, end_late, rest = limits.handshake_deadline - hurried] {
      if (first_size_ == 0) return end_late();
      deadline_.set_after(rest, end_late);
    });
  else
    deadline_.set_after(limits.handshake_deadline, end_late);
  transport_->set_events(this);
  read_first_bytes();
}

void Arrival::end(uint64_t ListenStats::*counter) {
  if (counter != nullptr) ++(port_.stats.*counter);
  deadline_.cancel();
  handshake_token_.reset();
  connection_token_.reset();
  core_.reset();
  if (transport_) transport_->close();
  port_.remove(shared_from_this());
}

// The first byte tells TLS from the relay's preamble; of the latter no byte too many is read. OpenSSL takes
// as much memory for a ClientHello as that announces, up to 128 KiB: it gets to see none that is long.
void Arrival::read_first_bytes() {
  const auto self = shared_from_this();
  const auto port = port_.shared_from_this();
  for (;;) {
    const bool is_tls = first_size_ > 0 && first_[0] == kTlsHandshakeRecord;
    const size_t wanted = first_size_ == 0 ? 1 : (is_tls ? kTlsHeadSize : kRelayPreambleSize) - first_size_;
    const Io io = transport_->read(std::span(first_).subspan(first_size_, wanted));
    if (io.state == Io::State::Blocked) return transport_->arm_read();
    if (io.state != Io::State::Ready) return end(&ListenStats::handshakes_failed);
    first_size_ += io.size;
    if (first_[0] == kTlsHandshakeRecord) {
      if (first_size_ < kTlsHeadSize) continue;
      const auto byte = [&](size_t i) { return std::to_integer<size_t>(first_[i]); };
      const bool is_client_hello = byte(1) == 3 && (byte(3) << 8 | byte(4)) >= 4 && byte(5) == 1;
      if (!is_client_hello || (byte(6) << 16 | byte(7) << 8 | byte(8)) > kClientHelloMax)
        return end(&ListenStats::handshakes_failed);
      return begin_tls();
    }
    if (!port_.options.relay_ticket_is_granted || first_[0] != static_cast<std::byte>(kRelayMagic[0]))
      return end(&ListenStats::handshakes_failed);
    if (first_size_ < kRelayPreambleSize) continue;
    const auto preamble = parse_relay_preamble(first_);
    if (!preamble) return end(&ListenStats::handshakes_failed);
    port_.relay.arrive(*preamble, std::move(transport_), std::move(connection_token_));
    return end(nullptr);
  }
}

void Arrival::begin_tls() {
  auto tls = Tls::make(*port_.tls, std::move(transport_), std::nullopt, std::span(first_).first(first_size_));
  if (!tls) return end(&ListenStats::handshakes_failed);
  core_ = std::make_shared<ConnectionCore>(port_.context, std::move(*tls), std::move(connection_token_));
  core_->handshake([weak = weak_from_this()](const Status& status) {
    const auto self = weak.lock();
    if (!self || !self->core_) return;
    const auto port = self->port_.shared_from_this();
    if (!status || (port->options.admits && !port->options.admits(self->core_->remote())))
      return self->end(&ListenStats::handshakes_failed);
    ConnectionPtr connection = self->core_->make_connection();
    self->end(nullptr);
    if (!port->is_closed) port->on_connection(std::move(connection));
  });
}

// ---- Port

Status Port::open(const Endpoint& endpoint) {
  WEFT_TRY(tls, TlsSettings::make(*options.identity, TlsSide::Server));
  acceptor_ = std::make_shared<Acceptor>(
      context, [weak = weak_from_this()](tcp::socket socket, const tcp::endpoint& from) {
        if (const auto self = weak.lock()) self->admit(std::move(socket), from);
      });
  return acceptor_->open(endpoint);
}

void Port::admit(tcp::socket socket, const tcp::endpoint& from) {
  ++stats.accepted;
  const ListenLimits& limits = options.limits;
  const AddressKey key = address_key(from.address());
  if (!make_room(key) || connections_->size() >= limits.connections_max ||
      connections_->size_at(key) >= limits.connections_max_per_address) {
    ++stats.refused_by_limit;
    return;
  }
  TransportPtr transport = make_tcp_transport(context, std::move(socket));
  if (options.shape) transport = make_shaped_transport(context, std::move(transport), *options.shape);
  const auto arrival = std::make_shared<Arrival>(*this, std::move(transport), key, connections_->enter(key),
                                                 handshakes_->enter(key));
  arrivals_.push_back(arrival);
  arrival->begin();
}

// False: whoever is there was there first, and does what it should.
bool Port::make_room(const AddressKey& newcomer) {
  const ListenLimits& limits = options.limits;
  const Instant now = steady_now();
  if (is_busy(newcomer)) {
    const auto waiting = arrivals_;
    for (const auto& arrival : waiting)
      if (arrival->is_silent_since(now - limits.first_byte_deadline_when_busy))
        arrival->end(&ListenStats::timed_out);
  }
  const auto displace_oldest = [&](const auto& may_go) {
    const auto oldest = std::ranges::find_if(arrivals_, may_go);
    if (oldest == arrivals_.end()) return false;
    // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): its end takes it off the list.
    const auto arrival = *oldest;
    arrival->end(&ListenStats::displaced);
    return true;
  };
  const auto is_idle = [&](const auto& arrival) {
    return arrival->is_silent_since(now - limits.silent_grace) ||
           arrival->is_there_since(now - limits.slow_grace);
  };
  if (handshakes_->size_at(newcomer) >= limits.handshakes_max_per_address)
    return displace_oldest(
        [&](const auto& arrival) { return arrival->from == newcomer && is_idle(arrival); });
  if (handshakes_->size() < limits.handshakes_max) return true;
  const AddressKey fullest = handshakes_->fullest();
  if (handshakes_->size_at(fullest) > handshakes_->size_at(newcomer) + 1)
    return displace_oldest([&](const auto& arrival) { return arrival->from == fullest; });
  return displace_oldest(is_idle);
}

class PortListener final : public Listener {
 public:
  explicit PortListener(std::shared_ptr<Port> port) : port_(std::move(port)) {}
  ~PortListener() override { port_->close(); }
  Endpoint endpoint() const override { return port_->bound(); }
  ListenStats stats() const override { return port_->current_stats(); }

 private:
  const std::shared_ptr<Port> port_;
};

}  // namespace

Result<std::unique_ptr<Listener>> Listener::open(Loop& loop, const Endpoint& endpoint, ListenOptions options,
                                                 std::function<void(ConnectionPtr)> on_connection) {
  auto port = std::make_shared<Port>(loop.impl().context, std::move(options), std::move(on_connection));
  WEFT_TRY_STATUS(port->open(endpoint));
  return std::unique_ptr<Listener>(std::make_unique<PortListener>(std::move(port)));
}

}  // namespace weft::net
