#include "net/acceptor.h"

#include <cerrno>

#include "net/tcp.h"

namespace weft::net {

namespace {

using asio::ip::tcp;

constexpr int kAcceptsPerTurn = 64;
constexpr Duration kAcceptBackOff = std::chrono::milliseconds(100);

Status cannot_listen(const Endpoint& endpoint, const asio::error_code& error) {
  const auto failed = [&](ErrorCode code, const std::string& why) {
    return fail(code, "cannot listen at " + to_string(endpoint) + ": " + why);
  };
  if (error == asio::error::address_in_use)
    return failed(ErrorCode::Unavailable, "another program listens there; stop it, or choose another port");
  if (error == asio::error::access_denied)
    return failed(ErrorCode::PermissionDenied, "ports below 1024 are for root; choose a higher one");
  if (error.value() == EADDRNOTAVAIL)
    return failed(ErrorCode::InvalidArgument,
                  "this machine does not have that address; 0.0.0.0 means all it has");
  return failed(ErrorCode::Unavailable, error.message());
}

}  // namespace

Status Acceptor::open(const Endpoint& endpoint) {
  asio::error_code error;
  tcp::endpoint address(asio::ip::make_address(endpoint.host, error), endpoint.port);
  if (error) {
    tcp::resolver resolver(acceptor_.get_executor());
    const auto found = resolver.resolve(endpoint.host, std::to_string(endpoint.port),
                                        tcp::resolver::numeric_service | tcp::resolver::passive, error);
    if (error || found.empty())
      return fail(ErrorCode::InvalidArgument, "cannot listen at " + to_string(endpoint) +
                                                  ": the name cannot be looked up: " + error.message());
    address = found.begin()->endpoint();
  }
  acceptor_.open(address.protocol(), error);
  if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor_.bind(address, error);
  if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
  if (!error) acceptor_.non_blocking(true, error);
  if (!error) local_ = acceptor_.local_endpoint(error);
  if (error) return cannot_listen(endpoint, error);
  wait();
  return {};
}

void Acceptor::close() {
  is_closed_ = true;
  asio::error_code ignored;
  acceptor_.close(ignored);
  back_off_.cancel();
}

Endpoint Acceptor::bound() const { return to_endpoint(local_); }

void Acceptor::wait() {
  acceptor_.async_wait(tcp::acceptor::wait_read, [weak = weak_from_this()](const asio::error_code& error) {
    const auto self = weak.lock();
    if (!self || self->is_closed_ || error == asio::error::operation_aborted) return;
    self->accept_all();
  });
}

void Acceptor::accept_all() {
  for (int i = 0; i < kAcceptsPerTurn && !is_closed_; ++i) {
    asio::error_code error;
    tcp::endpoint from;
    tcp::socket socket = acceptor_.accept(from, error);
    if (error == asio::error::would_block || error == asio::error::try_again) break;
    if (error == asio::error::connection_aborted) continue;
    if (error) {
      // No descriptors or memory: the port stays ready, and asking again at once would spin.
      back_off_.set_after(kAcceptBackOff, [weak = weak_from_this()] {
        if (const auto self = weak.lock()) self->accept_all();
      });
      return;
    }
    on_accept_(std::move(socket), from);
  }
  if (!is_closed_) wait();
}

}  // namespace weft::net
