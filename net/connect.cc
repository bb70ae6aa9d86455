#include <asio/ip/tcp.hpp>

#include "net/connection.h"
#include "net/connection_core.h"
#include "net/context.h"
#include "net/relay.h"
#include "net/shaped_transport.h"
#include "net/tcp.h"

namespace weft::net {

namespace {

using asio::ip::tcp;

struct Route {
  Endpoint endpoint;
  std::optional<RelayTicket> ticket;
  TlsSide side = TlsSide::Client;
};

IpAddress ip_of(const asio::ip::address& address) {
  const auto six =
      address.is_v6() ? address.to_v6() : asio::ip::make_address_v6(asio::ip::v4_mapped, address.to_v4());
  return six.to_bytes();
}

Error unavailable(const asio::error_code& error) {
  return {ErrorCode::Unavailable, "cannot connect: " + error.message()};
}

// Name, TCP, relay, TLS, one after the other under one deadline.
class Dial final : public std::enable_shared_from_this<Dial>, Transport::Events {
 public:
  Dial(std::shared_ptr<Context> context, Route route, ConnectOptions options, ConnectResult on_result)
      : context_(std::move(context)),
        route_(std::move(route)),
        options_(std::move(options)),
        on_result_(std::move(on_result)),
        resolver_(context_->io),
        socket_(context_->io),
        deadline_(context_),
        address_deadline_(context_) {}

  // A handler that does nothing once this has gone.
  template <typename Work>
  auto locked(Work work) {
    return [weak = weak_from_this(), work] {
      if (const auto self = weak.lock()) work(*self);
    };
  }

  void begin() {
    ends_at_ = steady_now() + options_.deadline;
    deadline_.set_after(
        options_.deadline, locked([](Dial& dial) {
          dial.finish(fail(ErrorCode::Timeout, "no answer within " +
                                                   std::to_string(seconds(dial.options_.deadline)) +
                                                   " s, while " + dial.doing_));
        }));
    context_->post(locked([](Dial& dial) { dial.resolve(); }));
  }

  void cancel() {
    on_result_ = nullptr;
    resolver_.cancel();
    asio::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    address_deadline_.cancel();
    if (transport_) transport_->close();
    core_.reset();
  }

 private:
  void finish(Result<ConnectionPtr> result) {
    if (!on_result_) return;
    const auto on_result = std::move(on_result_);
    cancel();
    if (!result) result = fail(result.error().within(to_string(route_.endpoint)));
    on_result(std::move(result));
  }

  void resolve() {
    if (!on_result_) return;
    asio::error_code error;
    const auto literal = asio::ip::make_address(route_.endpoint.host, error);
    if (!error) {
      addresses_ = {tcp::endpoint(literal, route_.endpoint.port)};
      return connect_next();
    }
    doing_ = "looking up the name";
    resolver_.async_resolve(
        route_.endpoint.host, std::to_string(route_.endpoint.port), tcp::resolver::numeric_service,
        [weak = weak_from_this()](const asio::error_code& failed,
                                  const tcp::resolver::results_type& results) {
          const auto self = weak.lock();
          if (!self || !self->on_result_) return;
          if (failed)
            return self->finish(
                fail(ErrorCode::Unavailable, "the name cannot be looked up: " + failed.message()));
          for (const auto& entry : results) self->addresses_.push_back(entry.endpoint());
          self->connect_next();
        });
  }

  // The next address that may be dialled; false: there is none any more.
  bool open_next() {
    for (; next_ < addresses_.size(); ++next_) {
      const tcp::endpoint& address = addresses_[next_];
      if (options_.may_dial) {
        const Status may = options_.may_dial(ip_of(address.address()), address.port());
        if (!may) {
          last_error_ = may.error();
          continue;
        }
      }
      asio::error_code error;
      socket_.close(error);
      socket_.open(address.protocol(), error);
      if (!error) return true;
      last_error_ = unavailable(error);
    }
    return false;
  }

  void connect_next() {
    if (!open_next())
      return finish(fail(
          last_error_.value_or(Error{ErrorCode::Unavailable, "cannot connect: the name has no address"})));
    doing_ = "connecting";
    const tcp::endpoint address = addresses_[next_++];
    // An address that swallows everything leaves time for those after it.
    if (next_ < addresses_.size()) {
      const auto share = (ends_at_ - steady_now()) / static_cast<int>(addresses_.size() - next_ + 1);
      address_deadline_.set_after(share, locked([](Dial& dial) {
                                    dial.last_error_ = unavailable(asio::error::timed_out);
                                    ++dial.turn_;
                                    dial.connect_next();
                                  }));
    }
    socket_.async_connect(address, [weak = weak_from_this(), turn = ++turn_](const asio::error_code& failed) {
      const auto self = weak.lock();
      if (!self || !self->on_result_ || turn != self->turn_) return;
      self->address_deadline_.cancel();
      if (!failed) return self->connected();
      self->last_error_ = unavailable(failed);
      self->connect_next();
    });
  }

  void connected() {
    transport_ = make_tcp_transport(context_, std::move(socket_));
    socket_ = tcp::socket(context_->io);
    if (options_.shape) transport_ = make_shaped_transport(context_, std::move(transport_), *options_.shape);
    if (!route_.ticket) return begin_tls();
    doing_ = "waiting for the other peer at the relay";
    const auto preamble = relay_preamble({*route_.ticket, route_.side == TlsSide::Client});
    const Io io = transport_->write(preamble);
    if (io.state != Io::State::Ready || io.size != preamble.size())
      return finish(fail(ErrorCode::Unavailable, "the relay hung up"));
    transport_->set_events(this);
    transport_->arm_read();
  }

  void on_readable() override {
    const auto self = shared_from_this();
    std::byte answer{};
    const Io io = transport_->read({&answer, 1});
    if (io.state == Io::State::Blocked) return transport_->arm_read();
    if (io.state != Io::State::Ready)
      return finish(fail(ErrorCode::Unavailable,
                         "the relay hung up: the ticket is not known there, or the other peer did not come"));
    if (answer != kRelayJoined) return finish(fail(ErrorCode::Unavailable, "what answers there is no relay"));
    begin_tls();
  }
  void on_writable() override {}

  void begin_tls() {
    doing_ = "agreeing on keys";
    auto settings = TlsSettings::make(*options_.identity, route_.side);
    if (!settings) return finish(fail(std::move(settings).error()));
    auto tls = Tls::make(**settings, std::move(transport_), options_.expected);
    if (!tls) return finish(fail(std::move(tls).error()));
    core_ = std::make_shared<ConnectionCore>(context_, std::move(*tls), nullptr);
    core_->handshake([weak = weak_from_this()](Status status) {
      const auto self = weak.lock();
      if (!self || !self->on_result_) return;
      if (status) return self->finish(self->core_->make_connection());
      // A server that cuts the handshake short may be full; whatever it was, it may be otherwise later.
      Error error = std::move(status).error();
      if (error.code != ErrorCode::PermissionDenied) error.code = ErrorCode::Unavailable;
      self->finish(fail(std::move(error)));
    });
  }

  const std::shared_ptr<Context> context_;
  const Route route_;
  const ConnectOptions options_;
  ConnectResult on_result_;
  tcp::resolver resolver_;
  tcp::socket socket_;
  Alarm deadline_, address_deadline_;
  Instant ends_at_{};
  std::vector<tcp::endpoint> addresses_;
  size_t next_ = 0;
  uint64_t turn_ = 0;
  std::optional<Error> last_error_;
  std::string doing_ = "starting";
  TransportPtr transport_;
  std::shared_ptr<ConnectionCore> core_;
};

class DialAttempt final : public Attempt {
 public:
  explicit DialAttempt(std::shared_ptr<Dial> dial) : dial_(std::move(dial)) { dial_->begin(); }
  ~DialAttempt() override { dial_->cancel(); }

 private:
  const std::shared_ptr<Dial> dial_;
};

}  // namespace

std::unique_ptr<Attempt> connect(Loop& loop, const Endpoint& endpoint, const ConnectOptions& options,
                                 ConnectResult on_result) {
  return std::make_unique<DialAttempt>(std::make_shared<Dial>(
      loop.impl().context, Route{endpoint, {}, TlsSide::Client}, options, std::move(on_result)));
}

std::unique_ptr<Attempt> connect_by_relay(Loop& loop, const Endpoint& relay, const RelayTicket& ticket,
                                          bool initiates, const ConnectOptions& options,
                                          ConnectResult on_result) {
  const TlsSide side = initiates ? TlsSide::Client : TlsSide::Server;
  return std::make_unique<DialAttempt>(
      std::make_shared<Dial>(loop.impl().context, Route{relay, ticket, side}, options, std::move(on_result)));
}

}  // namespace weft::net
