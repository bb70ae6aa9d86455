// TLS with certificates, as HTTP needs it: a Transport over a Transport. A server speaks TLS 1.3, a client
// also 1.2. net/tls.h is another thing: there both sides pin keys. Internal to web/.
//
// Bytes go between OpenSSL and the socket without a buffer of ours, and OpenSSL lets go of its own when it
// holds nothing, so that an idle connection costs little.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "net/loop.h"
#include "net/transport.h"

namespace weft::web {

class TlsContext {
 public:
  // PEM files. Errors: NotFound; InvalidArgument (cannot be read; the key is not that of the certificate).
  static Result<std::shared_ptr<const TlsContext>> load(const std::string& certificate_file,
                                                        const std::string& key_file);
  virtual ~TlsContext() = default;
  // The handshake is made by the first reads. The loop must outlive the transport.
  virtual Result<net::TransportPtr> wrap(net::Loop& loop, net::TransportPtr transport) const = 0;
};

class ClientTls {
 public:
  // `ca_file`: PEM, certificates that are trusted; empty: those that the system trusts. Errors: NotFound,
  // InvalidArgument.
  static Result<std::shared_ptr<const ClientTls>> load(const std::string& ca_file);
  virtual ~ClientTls() = default;
  // The certificate has to be valid for `host`, a name or an address. The handshake is made by the first
  // reads. Where it fails, `fault` says why.
  virtual Result<net::TransportPtr> wrap(net::Loop& loop, net::TransportPtr transport,
                                         const std::string& host,
                                         std::shared_ptr<std::string> fault) const = 0;
};

}  // namespace weft::web
