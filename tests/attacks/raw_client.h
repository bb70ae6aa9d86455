// A TCP connection in the hands of an attacker, and TLS on it by OpenSSL itself: both do whatever they are
// told. Blocking; a call that gets nowhere within a second fails.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <span>

#include "net/endpoint.h"
#include "security/identity.h"

namespace weft::attacks {

class RawSocket {
 public:
  // `from`: one of this machine's addresses, all of 127.0.0.0/8 among them; empty: as the system likes.
  explicit RawSocket(const net::Endpoint& endpoint, const std::string& from = {});
  ~RawSocket();
  RawSocket(const RawSocket&) = delete;
  RawSocket& operator=(const RawSocket&) = delete;

  int get() const { return descriptor_; }
  bool is_connected() const { return is_connected_; }
  bool send(std::span<const std::byte> bytes);
  bool is_closed();  // by the other side; what it sent is thrown away

 private:
  int descriptor_;
  bool is_connected_ = false;
};

class RawTls {
 public:
  RawTls(const net::Endpoint& endpoint, const security::Identity& identity, const std::string& from = {});
  bool handshake();
  bool read_some();  // whatever comes, which is thrown away; false: nothing, or the end
  bool write(std::span<const std::byte> bytes);
  bool renew_key();  // asks the other side for a new key, too

 private:
  struct Release {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  RawSocket socket_;
  std::unique_ptr<SSL_CTX, Release> context_;
  std::unique_ptr<SSL, Release> ssl_;
};

}  // namespace weft::attacks
