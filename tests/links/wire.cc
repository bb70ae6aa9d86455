#include "tests/links/wire.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstddef>

namespace weft::peer::test {

namespace {
sockaddr_in loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}
}  // namespace

Wire::Wire(net::Endpoint behind) : behind_(std::move(behind)), listener_(::socket(AF_INET, SOCK_STREAM, 0)) {
  sockaddr_in address = loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(listener_, 64), 0);
  EXPECT_EQ(::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
  endpoint_ = {"127.0.0.1", ntohs(address.sin_port)};
  thread_ = std::thread([this] { accept_all(); });
}

Wire::~Wire() {
  unplug();
  cut();
  for (Pair& pair : pairs_) {
    for (std::thread& thread : pair.threads) thread.join();
    for (const int socket : pair.sockets) ::close(socket);
  }
  ::close(listener_);
}

void Wire::unplug() {
  if (!thread_.joinable()) return;
  ::shutdown(listener_, SHUT_RDWR);
  thread_.join();
}

void Wire::cut() {
  const std::lock_guard lock(mutex_);
  for (Pair& pair : pairs_)
    for (const int socket : pair.sockets) ::shutdown(socket, SHUT_RDWR);
}

void Wire::swallow() {
  const std::lock_guard lock(mutex_);
  for (Pair& pair : pairs_) pair.swallows = true;
}

void Wire::accept_all() {
  for (;;) {
    const int near = ::accept(listener_, nullptr, nullptr);
    if (near < 0) return;
    ++accepted_;
    const int far = ::socket(AF_INET, SOCK_STREAM, 0);
    const sockaddr_in address = loopback(behind_.port);
    if (::connect(far, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      ::close(near);
      ::close(far);
      continue;
    }
    const int yes = 1;
    for (const int socket : {near, far}) ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    const std::lock_guard lock(mutex_);
    Pair& pair = pairs_.emplace_back();
    pair.sockets[0] = near;
    pair.sockets[1] = far;
    pair.threads[0] = std::thread([&pair] { forward(pair, pair.sockets[0], pair.sockets[1]); });
    pair.threads[1] = std::thread([&pair] { forward(pair, pair.sockets[1], pair.sockets[0]); });
  }
}

void Wire::forward(Pair& pair, int from, int to) {
  std::array<std::byte, 16 << 10> bytes;
  for (;;) {
    const ssize_t size = ::recv(from, bytes.data(), bytes.size(), 0);
    if (size <= 0) break;
    if (pair.swallows) continue;
    for (ssize_t sent = 0; sent < size;) {
      const ssize_t now = ::send(to, bytes.data() + sent, static_cast<size_t>(size - sent), MSG_NOSIGNAL);
      if (now <= 0) break;
      sent += now;
    }
  }
  if (!pair.swallows) ::shutdown(to, SHUT_WR);
}

}  // namespace weft::peer::test
