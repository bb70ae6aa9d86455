#include "net/tcp.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <climits>

namespace weft::net {

namespace {

using asio::ip::tcp;

void set_option(int descriptor, int level, int name, int value) {
  // A system without the option only notices dead connections later.
  (void)::setsockopt(descriptor, level, name, &value, sizeof(value));
}

void set_options(int descriptor) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY, 1);
  // An idle connection whose other end vanished is found in 30 s. Unanswered bytes wait longer: a receiver
  // that has paused looks the same to the system.
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT, 300'000);
}

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<Context> context, tcp::socket socket)
      : context_(std::move(context)), socket_(std::move(socket)) {
    asio::error_code error;
    socket_.non_blocking(true, error);
    const auto remote = socket_.remote_endpoint(error);
    address_ = error ? "unknown" : to_string(to_endpoint(remote));
    set_options(socket_.native_handle());
  }

  void set_events(Events* events) override { state_->events = events; }

  Io read(std::span<std::byte> into) override {
    for (;;) {
      const ssize_t size = ::recv(socket_.native_handle(), into.data(), into.size(), 0);
      if (size > 0) return Io::ready(static_cast<size_t>(size));
      if (size == 0) return Io::end();
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::blocked();
      if (errno != EINTR) return Io::failed({errno, std::generic_category()});
    }
  }

  Io write(std::span<const std::byte> from) override {
    for (;;) {
      const ssize_t size = ::send(socket_.native_handle(), from.data(), from.size(), MSG_NOSIGNAL);
      if (size >= 0) return Io::ready(static_cast<size_t>(size));
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Io::blocked();
      if (errno != EINTR) return Io::failed({errno, std::generic_category()});
    }
  }

  void arm_read() override {
    if (state_->is_read_armed || !socket_.is_open()) return;
    state_->is_read_armed = true;
    socket_.async_wait(tcp::socket::wait_read, [weak = std::weak_ptr(state_)](const asio::error_code& error) {
      const auto state = weak.lock();
      if (!state || error == asio::error::operation_aborted) return;
      state->is_read_armed = false;
      if (state->events != nullptr) state->events->on_readable();
    });
  }

  void arm_write() override {
    if (state_->is_write_armed || !socket_.is_open()) return;
    state_->is_write_armed = true;
    socket_.async_wait(tcp::socket::wait_write,
                       [weak = std::weak_ptr(state_)](const asio::error_code& error) {
                         const auto state = weak.lock();
                         if (!state || error == asio::error::operation_aborted) return;
                         state->is_write_armed = false;
                         if (state->events != nullptr) state->events->on_writable();
                       });
  }

  size_t unsent() override {
    int size = 0;
    // Of a socket that has gone nothing will leave.
    return socket_.is_open() && ::ioctl(socket_.native_handle(), SIOCOUTQNSD, &size) == 0
               ? static_cast<size_t>(size)
               : 0;
  }

  void set_unsent_max(size_t size) override {
    // The system's own bound, where there is none here.
    set_option(socket_.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT,
               size == 0 ? INT_MAX : static_cast<int>(std::min<size_t>(size, INT_MAX)));
  }

  void shut_write() override {
    asio::error_code ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void close() override {
    state_->events = nullptr;
    asio::error_code ignored;
    socket_.close(ignored);
  }

  const std::string& remote_address() const override { return address_; }
  std::string local_address() const override {
    asio::error_code error;
    const auto local = socket_.local_endpoint(error);
    return error ? std::string() : to_string(to_endpoint(local));
  }

 private:
  struct State {
    Events* events = nullptr;
    bool is_read_armed = false, is_write_armed = false;
  };
  std::shared_ptr<Context> context_;
  tcp::socket socket_;
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::string address_;
};

}  // namespace

TransportPtr make_tcp_transport(std::shared_ptr<Context> context, tcp::socket socket) {
  return std::make_unique<TcpTransport>(std::move(context), std::move(socket));
}

AddressKey address_key(asio::ip::address address) {
  AddressKey key{};
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  if (address.is_v4()) {
    const auto bytes = address.to_v4().to_bytes();
    key[0] = 4;
    std::copy(bytes.begin(), bytes.end(), key.begin() + 1);
  } else {
    const auto bytes = address.to_v6().to_bytes();
    key[0] = 6;
    std::copy_n(bytes.begin(), 8, key.begin() + 1);
  }
  return key;
}

Endpoint to_endpoint(const tcp::endpoint& endpoint) {
  auto address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6());
  return {address.to_string(), endpoint.port()};
}

}  // namespace weft::net
