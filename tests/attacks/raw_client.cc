#include "tests/attacks/raw_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>

#include "security/keys.h"

namespace weft::attacks {

RawSocket::RawSocket(const net::Endpoint& endpoint, const std::string& from)
    : descriptor_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const timeval second{.tv_sec = 1, .tv_usec = 0};
  ::setsockopt(descriptor_, SOL_SOCKET, SO_RCVTIMEO, &second, sizeof second);
  ::setsockopt(descriptor_, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof second);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  if (!from.empty()) {
    ::inet_pton(AF_INET, from.c_str(), &address.sin_addr);
    ::bind(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }
  address.sin_port = htons(endpoint.port);
  ::inet_pton(AF_INET, endpoint.host.c_str(), &address.sin_addr);
  is_connected_ = ::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
}

RawSocket::~RawSocket() { ::close(descriptor_); }

bool RawSocket::send(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t size = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(size));
  }
  return true;
}

bool RawSocket::is_closed() {
  char bytes[4096];
  for (;;) {
    const ssize_t size = ::recv(descriptor_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (size > 0) continue;
    return size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
}

RawTls::RawTls(const net::Endpoint& endpoint, const security::Identity& identity, const std::string& from)
    : socket_(endpoint, from), context_(SSL_CTX_new(TLS_client_method())) {
  SSL_CTX_set_verify(context_.get(), SSL_VERIFY_NONE, nullptr);
  SSL_CTX_use_certificate(context_.get(), identity.keys().certificate.get());
  SSL_CTX_use_PrivateKey(context_.get(), identity.keys().key.get());
  ssl_.reset(SSL_new(context_.get()));
  std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to a socket that the other side may have closed
  SSL_set_fd(ssl_.get(), socket_.get());
  SSL_set_connect_state(ssl_.get());
}

bool RawTls::handshake() {
  ERR_clear_error();
  return socket_.is_connected() && SSL_do_handshake(ssl_.get()) == 1;
}

bool RawTls::write(std::span<const std::byte> bytes) {
  ERR_clear_error();
  size_t size = 0;
  return SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &size) == 1;
}

bool RawTls::read_some() {
  ERR_clear_error();
  std::byte bytes[1024];
  size_t size = 0;
  return SSL_read_ex(ssl_.get(), bytes, sizeof bytes, &size) == 1;
}

bool RawTls::renew_key() {
  ERR_clear_error();
  return SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_REQUESTED) == 1 && SSL_do_handshake(ssl_.get()) == 1;
}

}  // namespace weft::attacks
